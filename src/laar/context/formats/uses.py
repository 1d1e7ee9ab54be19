"""Words by which a prompt makes use of its documents' order or numbers, as patterns.

Where one of them stands, no document may move, or no text under another number. A superfluous word
costs gain; a missing one an order that had a meaning, so each list errs to the long side.
"""

from __future__ import annotations

import re

from laar.context.formats.phrases import Phrases

_CITED_IN = (
    r"(?:nummern?|n[uú]mero|numéro|numer|номер)(?: [^\W\d_]{1,5}){0,2} (?:do[ck]um|quelle|fuente|"
    r"fonte|source|bron|źród|докум|источ)|numarası|verweis|belege?\b|"
    r"welche\w{0,2} (?:dokument|quelle|textstelle)|qu[ée] (?:documento|fuente)|"
    r"quel(?:le)?s? (?:document|source|passage|extrait)|qual[ei]? (?:documento|font)|"
    r"welk\w? (?:document|bron)|hangi (?:belge|kaynak)|"
    r"(?:nenn|gib|gebt|geben|angib|erwähn|indi[cq]|mencion|mention|nombr|nomm|señal|précis|incl[uy]|cit|"
    r"vermeld|noem|geef|podaj|wskaż|укаж|назов|привед)[^\W\d_]{0,4}"
    r"(?: [^\W\d_]{1,8}){0,2} (?:quelle|dokument|fuente|documento|referencia|source|document|"
    r"référence|font[ei]|bron|źródł|источник|документ|ссыл)|"
    r"(?:kaynak\w{0,4}|alıntı\w{0,3}) (?:göster|belirt|ver|yap)|którym dokumen|przypis|cytuj|"
    r"номер|как\w{2,3} (?:документ|источник)|"
    r"(?:der|die|welche|einer|nur) nummer|welche[rs]? davon|(?:le|un|quel) numéro|lequel|"
    r"(?:el|un|o|um|il) n[uú]mero|cuál de (?:ellos|estos)|het nummer"
)
_CITED_WIDE = (
    "数字", "哪一个", "哪一篇", "どれ", "编号", "编號", "序号", "注明", "标明", "标出", "出处",
    "哪个文", "哪篇", "哪份", "哪些文", "番号", "どの文書", "どの資料", "どのドキュメント",
    "根拠を", "번호", "어느 문서", "어떤 문서", "출처를", "각주",
    "رقم", "اذكر المصدر", "أي مستند", "اقتبس",
)  # fmt: skip
_NAMING = (
    r"(?:state|give|mention|name|indicate|list|specify|include|identify|return|output|show|add|"
    r"note|report|reference|quote|attribute|put|place|append|attach|mark|link|insert|write|print|"
    r"provide)(?: (?:the|your|a|all|any|every|each|its|exact|"
    r"relevant|original|supporting|corresponding|specific|used|to|of|claims?|names?|titles?)){0,4} "
    r"(?:sources?|references?|documents?|passages?|snippets?|excerpts?)\b|attribution|"
    r"(?:which|what|whose)(?: (?:of|the|these|those|two|three)){0,3} "
    r"(?:documents?|docs|passages?|sources?|snippets?|excerpts?)\b|with (?:its|their) numbers?\b|"
    r"numbers? \d{1,2}\b|where in the (?:documents|sources|passages|context)|"
    r"where (?:did )?you (?:found|find|got|get)\b|with (?:an? |its |their |your |the |all )?"
    r"(?:sources?|references?)(?= *(?:[.,;:!?)\n]|\Z))"
)
_OF_PLACES = r"(?! of (?!the\b|these|those|them|its|each))"  # "the number of people" is a count
_CHOSEN = (
    r"(?:the|an?|its|their|by|as|only|just|single|one|each|correct|right|relevant|best|which|what|"
    r"chosen|matching) (?:numbers?|index(?:es)?|integers?|ordinals?|positions?|digits?|ids?)\b"
    rf"{_OF_PLACES}|numeric (?:references?|citations?|labels?|ids?)|"
    r"which (?:ones?\b|of (?:these|those|them|the above)|texts?\b|"
    r"(?:two|three|four) (?:are|of|say|mention|agree|contradict))|"
    r"(?:say|tell me|state|indicate) which\b|(?:final|fourth|fifth) (?:text|article|entry)\b|"
    r"\d{1,2},? (?:and|or|to) \d{1,2}(?= ?(?:[.?!:;)\n]|\Z))|"
    r"(?:of|from|about|per) each(?= *(?:[.,;:!?)\n]|in\b|\Z))|"
    r"comma-separated|separated by commas?|(?:rate|score|grade|label) relevance|"
    r"(?:return|output|give|print) (?:\w+ ){0,2}(?:scores|labels|ratings|verdicts|grades)\b|"
    r"(?:cluster|group|deduplicate|filter|match) (?:them|these|those)\b|duplicates among|"
    r"array of (?:\w+ )?(?:strings|objects)|one (?:entry|line|item|sentence|row|bullet)s? per"
)
CITES = Phrases(
    r"\bcit(?:e|es|ed|ing|ation|ations)\b|footnote|superscript|in-?(?:line|text) references?|"
    r"\brank(?:s|ed|ing)?\b|re-?rank|\bindices\b|\bindex(?:es)? of\b|identifiers?\b|"
    r"\b(?:document|doc|passage|source|context|snippet|result|item|reference|chunk)s?"
    r"[ _-]?(?:numbers?|ids?|index|indexes|indices|names?)\b|numbers? of the|corresponding number|"
    r"\b(?:source|document|doc|passage|snippet|excerpt|context|result|article|reference|citation)s?"
    r"[ _#:]{0,2}\[?(?:\d{1,3}|n)\b|"
    r"respectively|each (?:of the )?(?:document|passage|source|snippet|article|result|text|one)s?|"
    r"for (?:each|every)|one by one|in (?:the )?(?:same |given |this |that )?order|"
    r"\b(?:first|second|third|last|former|latter|previous|next|preceding)(?: \w+)? "
    r"(?:document|doc|passage|source|snippet|excerpt|context|result|article|text|one|item)s?\b|"
    rf"zitier|quellenangabe|citer|citez|citar|citas|citando|цитир|ссыл|{_NAMING}|{_CITED_IN}|"
    rf"{_CHOSEN}",
    others=("引用", "出典", "标注", "인용", "fußnote", *_CITED_WIDE),
    beside=r"\[\^?(?:\d{1,3}|n|x|i|id|number|source|doc)\^?\]|#\d{1,2}\b|"
    r"(?:<|: ?)(?:int|integer|number)\b|\"(?:index|indices|docs?|documents?|sources?|ids?|"
    r"references?|citations?|passages?|rank|ranking)\"\s{0,4}:",
)
"""Makes use of a document's number or place, so that no text may move under another number."""

COUNTED = re.compile(
    r"\"(?:integer|number)\"|\"\d{1,2}\"|\[\d-\d\]|\\d|source|citation|doc|passage|reference|evidence|"
    r"rank|index|_id|\"ids?\"",
    re.IGNORECASE,
)
"""Has a place for a document's number, in the JSON that gives an answer its form."""

NUMBERED = Phrases(
    r"(?:documento?s?|documenti|documenten|dokumen[a-zóú]{0,5}|docs?|passages?|pasajes?|sources?|"
    r"quellen?|fuentes?|fonte?[si]?|snippets?|excerpts?|extracts?|chunks?|contexts?|textstellen?|"
    r"extraits?|bron(?:nen)?|belge\w{0,4}|źródł\w{1,3}|документ\w{0,3}|источник\w{0,3}|"
    r"джерел\w{0,2}|έγγραφ\w{0,3}|(?:ال)?مستند|(?:ال)?وثيقة|(?:ال)?مصدر|מסמך|מקור|"
    r"दस्तावेज़|स्रोत|เอกสาร|tài liệu|nguồn)"
    r"[ _#(\[]{0,3}(?<!s \()(?<!s\()(?:(?:no|nr|n)[.°º]? ?|"
    r"(?:number|nummer|numéro|n[úu]mero|numer|номер) )?#?[(\[]?(?:\d{1,2}\b|"
    r"(?:one|two|three|four|five|six|seven|eight|nine|ten)\b)|"
    r"\d{1,2}\. (?:dokument|quelle|belge)\b|indices\b|"
    r"(?:document|passage|source|snippet|text)s?[ _-](?:numbers?|index|indexes)\b|"
    r"numbers? of (?:the|each|every|all)(?: \w+)? (?:documents?|passages?|sources?|snippets?)",
    beside=r"(?:文档|文檔|文件|资料|資料|文章|段落|片段|来源|文書|ドキュメント|出典|문서|자료|"
    r"출처) ?[#(（\[【第]?\d{1,2}(?!\d)"
    # Who asks for [id] means the document's own name.
    r"|(?s:\A(?!.*\[id\]).*\[(?:\d{1,2}|n|number)\])",
)
"""Speaks of a document by a number: its own, or else that of its place."""


def _each(words: str, tail: str) -> str:
    """Each word with what may follow it; alternatives that begin with a letter are passed fast."""
    return "|".join(f"{word}(?:{tail})" for word in words.split("|"))


_NOUN = "documents?|docs?|passages?|sources?|snippets?|excerpts?|chunks?|search results?"
_DOCS = rf"(?:{_NOUN})\b"
_THING = rf"(?:ones?|items?|entry|entries|{_NOUN})\b"
_PLACES = "earlier|later|first|last|higher|lower|upper|former|latter"
_AGES = "newest|oldest|latest|earliest|most recent|least recent|cheapest"
_NO_RELEVANCE = r"(?![^.\n]{0,40}(?:relevan|similar|scor|importan|match|best))"
_SORTED = rf" \(?(?:sorted|ordered|arranged|ranked|listed) (?:by|from|according to) {_NO_RELEVANCE}"
_LISTED = (
    r" (?:that )?(?:is |are )?(?:listed|given|comes?|appears?) "
    rf"(?:{_PLACES}|at the (?:top|bottom))\b"
)
_FIRST = (
    r" (?:(?:[0-9]+|two|three|few|relevant|retrieved|given|provided) )?"
    rf"(?:{_DOCS}|(?:ones?|two|three)(?= *(?:[.,;:?!)\n]|\Z|"
    r"(?:is|are|was|were|say|says|myself|above)\b)))"
)
_OVERRIDES = (
    rf"(?: {_THING})? (?:overrides?|supersedes?|takes? (?:precedence|priority)|prevails?|beats?|"
    rf"outranks?|trumps?)\b|{_LISTED}| {_THING} (?:always )?(?:replaces?|wins?|counts?)\b"
)
_PER_DOC = (
    r"(?: [^ .]{1,20}){0,6}? (?:per|for (?:each|every|all)(?: of)?(?: the)?)"
    rf"(?: [a-z]+)? {_DOCS}"
)
_ORDER = "same|given|original|temporal|reading|date|time|publication"
_ORDINALS = "first|second|third|fourth|fifth|sixth|seventh|eighth|ninth|tenth|last|final"
_ORDINALS_FR = "premier|première|deuxième|second|seconde|troisième|quatrième|dernier|dernière"
_ORDINALS_DE = "erste|zweite|dritte|vierte|fünfte|letzte"
_TEXTS = (
    "documents?|docs?|passages?|texts?|sections?|chunks?|paragraphs?|parts|pieces|snippets?|"
    "excerpts?|sources?"
)
_ALL = (
    r"(?: [^\W\d_]{1,12}){0,3} (?:each|every|all|the|these|those|my|following)(?: \w+){0,2} "
    rf"(?:{_TEXTS})\b"
)
_SEQUENCE = (
    r"(?:list|array|sequence) of (?:\w+ )?(?:labels?|numbers?|"
    r"scores?|booleans?|ratings?|verdicts?|integers?|digits|[01]\b|zeros|classes|"
    r"sentiments?|translations|true)|(?:numbers|scores|labels|ratings|verdicts) separated by"
)
_PLACES_WIDE = (
    "相同的顺序", "相同顺序", "按顺序", "最后一个", "最后一篇", "最后一份", "同じ順", "最初の文書",
    "最後の文書", "같은 순서", "첫 번째", "마지막 문서",
)  # fmt: skip
PLACES = Phrases(
    "|".join(
        (
            _each("same|given|original", r" order\b"),
            r"order (?:given|listed|shown|received|of appearance|"
            r"(?:in which )?they (?:appear|are|come|were))\b",
            _each(_ORDINALS, _FIRST),
            rf"\d{{1,2}}(?:st|nd|rd|th) {_DOCS}",
            r"the (?:top|bottom)(?:most)? (?:one|document|passage|source)\b",
            r"(?:one|document|passage) (?:immediately|directly|just|right) (?:above|below)",
            _each("scores?|ratings?|grades?|labels?|verdicts?|lines?|one", _PER_DOC),
            _each(
                "score|rate|grade|label|classify|judge|translate|proofread|paraphrase|rewrite|"
                "rephrase|correct|merge|concatenate|sort|reorder|rank|deduplicate",
                rf" (?:each|every|all)(?: of)?(?: the)? {_DOCS}|{_ALL}",
            ),
            _each(
                "sort|reorder|re-order|rearrange|rank|rerank|translate|label|score|rate|grade|"
                "classify|concatenate|proofread|mark",
                r" (?:them|these|those)\b",
            ),
            _each("them|these|those", " in turn"),
            r"one after (?:another|the other)|(?:right|correct|wrong|which|what) order\b",
            _each("skip|ignore|drop|omit|disregard", r" (?:the )?(?:first|last)\b"),
            _SEQUENCE,
            _each("gleichen|selben|derselben|gegebenen|ursprünglichen", " reihenfolge"),
            _each(_ORDINALS_DE, "[nrs]? (?:dokument|quelle|textstelle)"),
            "même ordre",
            _each(_ORDINALS_FR, " (?:document|passage|extrait|source)"),
            "mismo orden",
            _each("primer|segundo|tercer|cuarto|último", " (?:documento|pasaje|fragmento)"),
            _each("primera|segunda|tercera|última", " fuente"),
            "mesma ordem",
            _each("primeiro|segundo|terceiro|quarto|último", " documento"),
            _each("primeira|segunda|terceira|última|ultima", " fonte"),
            "stesso ordine",
            _each("primo|secondo|terzo|quarto|ultimo", " documento"),
            _each("eerste|tweede|derde|vierde|laatste", " (?:document|bron)"),
            _each("pierwsz|drug|trzec|czwart|ostatn", "[^ ]{1,3} (?:dokument|źródł)"),
            _each("birinci|ikinci|üçüncü|dördüncü|son", " belge"),
            "том же порядке",
            _each("перв|втор|трет|четв[её]рт|последн", "[а-я]{1,3} (?:документ|источник)"),
            "(?:المستند|الوثيقة|المصدر) (?:الأول|الثان|الثالث|الرابع|الأخير)",
        )
    ),
    others=_PLACES_WIDE,
    beside=r"第 ?[一二三四五六七八九十\d]{1,3} ?(?:个文|個文|篇|份|条资|段)|"
    r"[一二三四五六七八九十\d]{1,2} ?(?:番目|つ目)の|(?:두|세|네|다섯) ?번째 (?:문서|자료)",
)
"""Speaks of documents by their places, or asks for an answer to each in turn."""

ORDERED = Phrases(
    "|".join(
        (
            _each("temporal|reading|date|time|publication", r" order\b"),
            r"in order\s*(?:[.,;:!?)\n]|\Z)",
            r"in order of (?:their )?(?:date|time|age|recency|publication|creation|occurrence)",
            rf"in the order (?!of ){_NO_RELEVANCE}",
            "chronolog",
            r"timeline|consecutive|sequential|from one(?: \w+)? to the next",
            r"most (?:reliable|trusted|trustworthy|authoritative|specific)(?: \w+)? first",
            rf"split (?:up )?into (?:\w+ )?(?:{_TEXTS})",
            "continues? the (?:previous|last|story|text)",
            r"versions of\b|from version to version",
            rf"(?:ascending|descending) (?:order|priority|importance){_NO_RELEVANCE}",
            _each(
                _AGES,
                rf"(?: {_THING})? (?:first|last|(?:at|on|to) (?:the )?(?:top|bottom|{_AGES}))\b",
            ),
            r"(?:message|one|version|documents?|it) comes? (?:first|last)\b|"
            r"the one (?:at|on) the (?:top|bottom)",
            _each("are|were", _SORTED),
            _each(f"ones?|{_NOUN}", f",?{_SORTED}|{_LISTED}"),
            _each(_PLACES, _OVERRIDES),
            _each("overridden|superseded|replaced", rf" by (?:an? |the )?(?:{_PLACES}) {_THING}"),
            _each("neueste|älteste", "[nrs]?(?: [a-zäöü]+)? zuerst"),
            "plus récents? aux? plus anciens?|plus anciens? aux? plus récents?",
            "cronol[oó]gic|más (?:recientes?|antiguos?) primero|хронолог",
        )
    ),
    others=("按时间", "时间顺序", "時系列", "시간순", "시간 순"),
)
"""Gives the order of the documents a meaning, whether they have numbers or not. The order that a
retriever gives them, by relevance, is none: a note repeats it."""
