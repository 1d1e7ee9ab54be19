"""The shapes in which programs put documents into prompts, as data: one row for each.

A row has the beginning of a document, or the text between two, and the evidence that it needs: a
label such as ``Document 3:`` needs none, while ``3.`` may as well number the steps of a recipe.
`Needs` are points of evidence that the place in the prompt must have (see `places`).

`openers` and `cuts` know no shape by name; `lists`, `xml` and `fences` find those of their formats.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum

from laar.context.formats import words
from laar.context.settings import Format


class Needs(IntEnum):
    """Evidence of retrieval that a shape needs around it, in points."""

    NOTHING = 0
    PLACE = 2  # a heading or a tag that announces documents, and a question about them
    RETRIEVAL = 3  # words that show that these were retrieved


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The fields of every row.

    Args:
        name: its name in reports and counts.
        family: the setting that switches it on.
        needs: the evidence that it needs around it.
        like: an example of its look, for readers.
        seen_in: programs where it is the usual form.
    """

    name: str
    family: Format
    needs: Needs
    like: str
    seen_in: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Opener(Shape):
    """Documents that begin with a line of their own kind.

    Args:
        begins: pattern from the line's first sign on to the end of the label; group ``n`` is its
            number, if it has one, group ``id`` its name.
        ends: literal that ends a document, with ``{n}`` for its number.
        named: each label is the document's own, such as a file, and may come twice.
    """

    begins: str
    ends: str = ""
    named: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut(Shape):
    """Documents with something between them.

    Args:
        between: pattern of the separator.
    """

    between: re.Pattern[str]


_IN = r"[ \t]*+"
_MARK = r"(?:#{1,6}[ \t]++|[-*+>][ \t]++)?(?:\*\*|__)?[-=]{0,5}[ \t]?[\[(<【«{]?"  # Markdown, rules
_NUMBER = r"(?:[ \t_#-]{0,2}(?:No\.?[ \t]?|n°[ \t]?)?#?|[ \t_][\[(]|\[(?=\d{1,4}\]:))"
_NUMBER += r"(?P<n>\d{1,4})(?![\d.,]\d|\w|-\w)"
_STOP = r"(?:[ \t]?[\])>】»}])?(?:\*\*|__)?[ \t]?[-=]{0,5}(?:\*\*)?[:：.]?(?:\*\*|__)?[-=]{0,5}"
_STOP += r"(?:(?<=[\])>】»}:：.*_=-])|(?=[ \t\r]*+(?:\n|\(|\||\Z)))"  # "Document 3 is" is no label

_NAME = r"(?:[ _](?:name|title|file|id|path|url))?(?:\*\*)?[ \t]?[:：](?:\*\*)?[ \t]*+"
_NAME += r"(?P<id>\S[^\n]{0,159})(?=\n)"

OPENERS: tuple[Opener, ...] = (
    Opener(
        name="bounded",
        family="labels",
        needs=Needs.NOTHING,
        like="[CONTEXT 0]:\ntext\n[END CONTEXT 0]",
        seen_in="AnythingLLM",
        begins=rf"{_IN}\[CONTEXT (?P<n>\d{{1,4}})\]:?",
        ends="[END CONTEXT {n}]",
    ),
    Opener(
        name="named",
        family="labels",
        needs=Needs.NOTHING,
        like="[Doc_17] text",
        seen_in="the ContextPilot paper",
        begins=rf"{_IN}[\[【<](?i:doc(?:ument)?|passage|chunk|source|context|id)[_:\- ]{{1,2}}"
        r"(?P<id>[\w.\-]{1,64})[\]】>][:：]?",
    ),
    Opener(
        name="labelled",
        family="labels",
        needs=Needs.NOTHING,
        like="Document 3: text, Source 3: text, ### Passage 3",
        seen_in="LlamaIndex with citations, Haystack, the ContextPilot paper",
        # The number, which most lines lack, is looked for first.
        begins=rf"{_IN}{_MARK}(?=[{words.LABEL_LETTERS}][^\n\d]{{1,40}}+\d)"
        rf"(?i:{words.LABELS})(?:[ _]ID)?"
        rf"{_NUMBER}{_STOP}",
    ),
    Opener(
        name="titled",
        family="labels",
        needs=Needs.NOTHING,
        like="### Source: handbook.pdf",
        seen_in="prompts written by hand",
        begins=rf"#{{1,6}}[ \t]++(?i:{words.TITLED}){_NAME}",
        named=True,
    ),
    Opener(
        name="titled_loosely",
        family="labels",
        needs=Needs.PLACE,
        like="Source: handbook.pdf, page 4, [File: a.md]",
        seen_in="LangChain with a `format_docs` of one's own",
        begins=rf"{_IN}{_MARK}(?i:{words.TITLED}|{words.LOOSELY_TITLED}){_NAME}",
        named=True,
    ),
    Opener(
        name="ruled",
        family="labels",
        needs=Needs.RETRIEVAL,
        like="--- handbook.pdf ---",
        seen_in="prompts written by hand",
        begins=rf"{_IN}(?:-{{2,}}|={{2,}}|#{{2,}}|\*{{2,}})[ \t]*+"
        r"(?P<id>[^\n=#*-][^\n=#*]{0,120}?)"
        r"[ \t]*(?:-{2,}|={2,}|#{2,}|\*{2,})[ \t\r]*+(?=\n)",
        named=True,
    ),
    Opener(
        name="filed",
        family="labels",
        needs=Needs.PLACE,
        like="handbook.pdf#page=4: text",
        seen_in="Azure's samples",
        begins=rf"{_IN}\[?(?P<id>[^\s:\[\]]{{1,100}}\.(?:pdf|txt|md|html?|docx?|pptx?|xlsx?|csv|json|rst)"
        r"(?:[#?][^\s:\]]{0,60})?)\]?[:：][ \t]",
        named=True,
    ),
    Opener(
        name="labelled_loosely",
        family="labels",
        needs=Needs.PLACE,
        like="Result 3: text",
        seen_in="search tools",
        begins=rf"{_IN}{_MARK}(?i:{words.LOOSE_LABELS}){_NUMBER}{_STOP}",
    ),
    Opener(
        name="quoted",
        family="brackets",
        needs=Needs.NOTHING,
        like="[3] «text»",
        seen_in="DSPy before 3",
        begins=rf"{_IN}\[(?P<n>\d{{1,4}})\][ \t](?=«)",
    ),
    Opener(
        name="bracketed",
        family="brackets",
        needs=Needs.PLACE,
        like="[3] text",
        seen_in="prompts written by hand",
        begins=rf"{_IN}(?:\*\*)?[\[【](?P<n>\d{{1,4}})[\]】](?:\*\*)?[:：.]?",
    ),
    Opener(
        name="points",
        family="points",
        needs=Needs.RETRIEVAL,
        like="3. text, (3) text",
        seen_in="prompts written by hand",
        begins=rf"{_IN}(?:\*\*)?\(?(?P<n>\d{{1,4}})[.):](?:\*\*)?[ \t]",
    ),
    Opener(
        name="headings",
        family="headings",
        needs=Needs.RETRIEVAL,
        like="## Title of a document",
        seen_in="prompts written by hand",
        begins=r"(?P<level>#{1,6})[ \t]++(?=[^\s#])",
    ),
    Opener(
        name="bullets",
        family="bullets",
        needs=Needs.RETRIEVAL,
        like="- a memory",
        seen_in="Mem0",
        begins=rf"{_IN}[-*•][ \t]++",
    ),
)

CUTS: tuple[Cut, ...] = (
    Cut(
        name="separators",
        family="separators",
        needs=Needs.RETRIEVAL,
        like="text\n---\ntext",
        seen_in="prompts written by hand, a separator given to LangChain",
        between=re.compile(r"\n[ \t]*+([-=#*_~+])\1{2,}[ \t\r]*+(?=\n|$)"),
    ),
    Cut(
        name="paragraphs",
        family="paragraphs",
        needs=Needs.RETRIEVAL,
        like="text, a blank line, text",
        seen_in="LangChain, LlamaIndex, Haystack",
        between=re.compile(r"\n(?:[ \t\r]*+\n)++"),
    ),
    Cut(
        name="lines",
        family="paragraphs",
        needs=Needs.RETRIEVAL,
        like="text, a line end, text",
        seen_in="Dify, Mem0",
        between=re.compile(r"\n"),
    ),
)

_OTHERS: tuple[Shape, ...] = (
    Shape(
        name="xml",
        family="xml",
        needs=Needs.NOTHING,
        like='<document id="7">text</document>, <source id="1" name="a.pdf">text</source>',
        seen_in="Anthropic's guide, Open WebUI",
    ),
    Shape(
        name="json",
        family="json",
        needs=Needs.NOTHING,
        like='{"results": [{"content": "text"}]}, {"memories": [...]}',
        seen_in="results of tools, Mem0",
    ),
    Shape(
        name="json_list",
        family="json",
        needs=Needs.PLACE,
        like='[{"text": "text"}], ["text", "text"]',
        seen_in="DSPy, results of tools",
    ),
    Shape(
        name="json_lines",
        family="json",
        needs=Needs.NOTHING,
        like='{"text": "text", "score": 0.9}\n{"text": ...}',
        seen_in="results of tools",
    ),
    Shape(
        name="printed",
        family="records",
        needs=Needs.PLACE,
        like="[Document(page_content='text'), ...], page_content='text' metadata={...}",
        seen_in="LangChain without a `format_docs`",
    ),
    Shape(
        name="fences",
        family="numbered",
        needs=Needs.NOTHING,
        like="Document 1:\n```\ntext\n```",
        seen_in="prompts written by hand",
    ),
    Shape(
        name="records",
        family="records",
        needs=Needs.NOTHING,
        like="Source: a.md\nContent: text",
        seen_in="LangChain with sources, tools of its agents",
    ),
    Shape(
        name="parts",
        family="json",
        needs=Needs.NOTHING,
        like='[{"type": "document", ...}, {"type": "search_result", ...}], text blocks with labels',
        seen_in="Anthropic's interface, tools of MCP servers",
    ),
    Shape(
        name="declared",
        family="labels",
        needs=Needs.NOTHING,
        like="as `delimiters` of the route say",
        seen_in="your prompts",
    ),
)

SHAPES: dict[str, Shape] = {shape.name: shape for shape in (*OPENERS, *CUTS, *_OTHERS)}
