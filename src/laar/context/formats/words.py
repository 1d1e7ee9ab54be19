"""Words that prompts with documents use, in several languages, as patterns.

Plain lists, separate from the code that uses them. A missing word costs gain; a superfluous one may
cost an order that had a meaning, so each list errs to the short side.
"""

from __future__ import annotations

import re

import xxhash

from laar.context.formats.stems import Stems

__all__ = [
    "ANSWERS",
    "CITES",
    "CONTINUES",
    "COUNTED",
    "HEADER",
    "HEADS",
    "HEADS_WIDE",
    "IMPERATIVE",
    "INLINE",
    "INSTRUCTS",
    "LABELS",
    "LABEL_LETTERS",
    "LOOSELY_TITLED",
    "LOOSE_LABELS",
    "MEMORIES",
    "NUMBERED",
    "ONE",
    "ORDERED",
    "PLACES",
    "POINTS_AT",
    "RARE",
    "READS",
    "RETRIEVAL",
    "RETRIEVAL_NOUN",
    "STEMS",
    "TITLED",
    "TOOL",
    "TURNS",
    "UNSURE",
    "Phrases",
]


class Phrases:
    """Phrases to look for in a text, in letters of any case; made for speed.

    Args:
        pattern: pattern of small letters; each phrase begins with a word.
        others: literals that need no word's beginning, in scripts that write without blanks.
        beside: pattern of phrases that begin with a sign.
    """

    def __init__(self, pattern: str, *, others: tuple[str, ...] = (), beside: str = "") -> None:
        self._pattern = re.compile(rf"\b(?:{pattern})")
        self._others = others
        self._beside = re.compile(beside) if beside else None
        self._known: dict[int, bool] = {}  # by hash; what stands around documents comes again

    def end_in(self, text: str) -> int:
        """The approximate end of the first phrase; -1 if there is none."""
        small = text.lower()
        match = self._pattern.search(small)
        if match is None and self._beside is not None:
            match = self._beside.search(small)
        if match is not None:
            return match.end()
        if small.isascii():
            return -1
        return max((small.find(other) for other in self._others), default=-1)

    def are_in(self, text: str) -> bool:
        """Whether there is one."""
        if len(text) < _WORTH_A_HASH:
            return self.end_in(text) >= 0
        key = xxhash.xxh3_64_intdigest(text.encode())
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            known = self._known[key] = self.end_in(text) >= 0
        return known


_WORTH_A_HASH = 32
_MOST_KNOWN = 4096


LABELS = (
    r"document|doc|passage|source|context|snippet|excerpt|extract|search[ _-]result|"
    r"retrieved (?:document|passage|chunk|text)|evidence|citation|"
    r"dokument|quelle|fuente|documento|fonte|pasaje|extrait|fragmento|dokumen|документ|источник|"
    r"文档|文檔|文件|资料|資料|文書|ドキュメント|出典|문서|출처|자료|"
    r"belge|kaynak|bron|kilde|källa|zdroj|źródło|sumber|джерело|έγγραφο|πηγή|"
    r"المستند|مستند|الوثيقة|وثيقة|المصدر|سند|מסמך|מקור|दस्तावेज़|दस्तावेज|स्रोत|"
    r"เอกสาร|tài liệu|nguồn"
)
"""Before a number at the beginning of a line they name a document and hardly anything else."""

TITLED = r"source|document|doc|passage|excerpt|quelle|fuente|fonte|источник|来源|出典|출처"
"""Before a document's name on a line of its own."""

LOOSELY_TITLED = r"file|filename|url|link|reference|origin|article|title|文件|标题"
"""These name other things as well."""

LABEL_LETTERS = "".join(
    sorted(
        {
            letter
            for word in re.split(r"[|(]", LABELS)
            if word
            for letter in word[0] + word[0].upper()
        }
    )
)
"""Their first letters, to pass over other lines quickly."""


def _any_case(word: str) -> str:
    return "".join(f"[{letter}{letter.upper()}]" for letter in word)


def _heads(beginnings: tuple[str, ...], *, ascii_only: bool) -> re.Pattern[str]:
    """One alternative for each first letter: a line is passed over as soon as none fits."""
    by_letter: dict[str, list[str]] = {}
    for word in beginnings:
        by_letter.setdefault(word[0], []).append(_any_case(word[1:]))
    letters = "".join(by_letter) + "".join(by_letter).upper()
    words = "|".join(f"{_any_case(first)}(?:{'|'.join(rest)})" for first, rest in by_letter.items())
    if ascii_only:  # fewer classes of signs to ask for
        return re.compile(
            rf"\n[ \t#*+>=_\-\[(<{{]*+(?=[{letters}])(?:{words})(?=[^\n0-9:_]{{0,24}}+[0-9:_])"
        )
    return re.compile(
        rf"\n[ \t#*+>=_\-\[(<【«{{]*+(?=[{letters}\d\x80-\uffff])"
        rf"(?:(?:{words}|[\x80-\uffff])(?=[^\n\d:_]{{0,24}}+[\d:_])|\d{{1,4}}\] «)"
    )


_BEGINNINGS = (
    "do", "pa", "so", "con", "sn", "ext", "ex", "sea", "ret", "ev", "ci", "que", "qu", "fu", "fo",
    "fr", "id", "ch", "ur", "li", "fi", "ti", "te", "met",
)  # fmt: skip
HEADS = _heads(_BEGINNINGS, ascii_only=True)
"""Pattern for ASCII text that passes over most lines quickly; the others may begin with a label or
a record."""

RARE = ("\nName:", "\n  Name:", "\nArticle ", "\nPage:")
HEADS_WIDE = _heads(
    (
        *(*_BEGINNINGS, "arti", "name", "value", "rel", "score"),
        *("be", "ka", "br", "ki", "kä", "zd", "su", "tà", "ng"),
    ),
    ascii_only=False,
)
"""The same at half the speed, for texts with other letters than the English, or one of `RARE`."""

LOOSE_LABELS = (
    r"result|text|reference|chunk|record|memory|file|hit|knowledge|note|fact|"
    r"node|fragment|item|entry|text chunk|ergebnis|resultado|résultat|результат|结果|片段|結果"
)
"""These count other things as well, such as the notes of a tune."""

_NOUNS = (
    r"contexts?|documents?|docs|passages?|sources?|excerpts?|extracts?|snippets?|chunks?|"
    r"(?:search|retrieval|web|query)[ _-]results?|knowledge(?: base)?|evidence|"
    r"retrieved (?:texts?|content|information|articles|facts|data|paragraphs|memories|items)|"
    r"memories|information|"
    r"reference (?:material|documents|texts?)s?|"
    r"kontext|dokumente|quellen|suchergebnisse|contexte|documents|extraits|sources|contexto|"
    r"documentos|fuentes|fontes|contesto|documenti|контекст|документы|источники|"
    r"上下文|文档|参考资料|资料|检索结果|搜索结果|文書|文脈|資料|参考情報|検索結果|コンテキスト|"
    r"문맥|문서|검색 결과|컨텍스트|참고 ?자료|자료|"
    r"已知信息|知识库|知识|背景信息|背景知识|参考内容|参考文档|参考信息|相关文档|参照|関連文書|ドキュメント|"
    r"paragraphs|articles|"
    r"documenten|bronnen|kontekst|dokumenty|źródła|bağlam|belgeler|kaynaklar|konteks|dokumen|"
    r"документи|джерела|πλαίσιο|έγγραφα|السياق|المستندات|الوثائق|المصادر|הקשר|מסמכים|"
    r"संदर्भ|दस्तावेज़|दस्तावेज|บริบท|เอกสาร|ngữ cảnh|tài liệu"
)

HEADER = re.compile(
    rf"[ \t]*+(?:[#>]{{1,6}}[ \t]*+|[-*+][ \t]++)?(?:\*\*|__|\[+[ #]*)?"
    rf"(?:(?:the|some|your|my|here are the|here are|relevant|retrieved|provided|supporting|given|"
    rf"following|additional|available|useful|top|related|reference|user|external|internal|new|"
    rf"and|or|from|matching|found|returned)[ _-]){{0,4}}"
    rf"(?P<noun>{_NOUNS})(?:[ _-](?:information|documents|passages|snippets|data|text|block|"
    rf"sections?|list|below|articles|facts|content|found|retrieved))?"
    rf"(?:[ \t]?\([^()\n]{{0,60}}\))?[ #]*(?:\*\*|__|\]+)?[ \t]*+(?::|：|(?=\n))(?:\*\*|__)?",
    re.IGNORECASE,
)
"""A line that only announces documents: ``Context:``, ``## Retrieved passages``."""

ONE = re.compile(r"source|document|passage|excerpt|extract|snippet|chunk", re.IGNORECASE)
"""Nouns that name a single document when its name follows on their line."""

INLINE = re.compile(
    r"\n([ \t]*+(?:\*\*)?(?:(?:Retrieved|Relevant|Provided|Given|Search|Background|User) )?"
    r"(?:[Cc]ontexts?|CONTEXT|[Dd]ocuments?|DOCUMENTS|[Pp]assages|[Ss]ources|[Rr]esults|[Kk]nowledge|"
    r"[Ii]nformation|[Ee]vidence|[Mm]emories|[Ss]nippets|[Ee]xcerpts)(?:\*\*)?:(?:\*\*)?)"
    r"[ \t](?=\S)"
)
"""A heading that shares its line with the first document."""

_LOOKED_UP = (
    "根据以下", "根据上述", "根据提供", "以下の", "以下是", "以下内容", "以下文档", "以下资料",
    "检索到", "参考以下", "参考资料", "検索結果", "上下文", "다음 문맥", "다음 문서",
    "다음 컨텍스트", "검색 결과", "다음 정보", "제공된", "已知信息", "知识库", "作为你的知识",
    "作为本次对话的参考", "提供的上下文", "参考内容", "背景信息", "提供された", "次の文脈",
    "aşağıdaki bağlam", "aşağıdaki belge", "poniższego kontekstu", "poniższych dokument",
    "наступн", "المستندات التالية", "الوثائق التالية", "السياق التالي", "المصادر التالية",
    "המסמכים הבאים", "ההקשר הבא", "निम्नलिखित दस्तावे", "निम्नलिखित संदर्भ", "दिए गए संदर्भ",
    "บริบทต่อไปนี้", "เอกสารต่อไปนี้", "tài liệu sau", "ngữ cảnh sau",
)  # fmt: skip
RETRIEVAL = Phrases(
    r"retriev(?:ed|al)|search results|knowledge base|this information|vector (?:store|database)|"
    r"context information|learned knowledge|pieces? of (?:\w+ )?(?:context|information)|"
    r"(?:provided|following|given|above|below|these|relevant|supplied|attached|numbered|"
    r"supporting|extracted|reference|retrieved) (?:\w+ ){0,2}"
    r"(?:contexts?|documents|docs|passages|sources|excerpts|extracts|snippets|chunks|articles|"
    r"search results|references|parts|evidence|paragraphs|materials?|memories|texts|results|"
    r"information|facts|knowledge)|"
    r"(?:contexts?|documents|docs|passages|sources|excerpts|snippets|chunks|results|articles|"
    r"information|references|evidence) (?:\w+ ){0,2}(?:below|above|provided|given|retrieved|"
    r"found|that follow)|(?:using|use|from|on|with|read|consult|given|review|in) (?:only )?"
    r"(?:the|these|those|my|our|all) (?:contexts?|documents|passages|sources|snippets|excerpts)\b|"
    r"(?:several|some|multiple|various) (?:\w+ )?(?:documents|passages|sources|excerpts|snippets|"
    r"search results)\b|"
    r"folgende[nr]? (?:kontext|dokumente|quellen)|contexte (?:suivant|ci-dessous|fourni)|"
    r"documents (?:suivants|ci-dessous|fournis)|siguiente contexto|siguientes documentos|"
    r"seguinte contexto|seguintes documentos|seguente contesto|следующ\w+ (?:контекст|документ)|"
    r"volgende (?:context|documenten)|dokumen berikut|konteks berikut",
    others=_LOOKED_UP,
)
"""Phrases that show that the text near them was retrieved to answer from."""

RETRIEVAL_NOUN = re.compile(
    r"result|document|passage|chunk|source|found|excerpt|snippet", re.IGNORECASE
)
"""Words in the first line of a tool's result that announce findings."""

_COMES_NOW = (
    "以下", "根据", "参考", "다음", "検索", "使用", "aşağıdaki", "poniższ", "наступн", "التالي",
    "הבא", "निम्नलिखित", "ต่อไปนี้",
)  # fmt: skip
POINTS_AT = Phrases(
    r"(?:following|below|above|given|provided|us(?:e|ing)|here|answer|these|based|from|"
    r"information is|i found|found)\b|folgend|suivant|ci-dessous|siguiente|seguinte|"
    r"seguente|следующ",
    others=_COMES_NOW,
)
"""Phrases in a sentence about documents that announce them as next."""

MEMORIES = Phrases(
    r"(?:relevant|user|retrieved|past|previous|stored|long[ -]term|known|recalled|existing|"
    r"saved|these|following|the)(?:'s)? memories|memories(?:/facts)?(?: (?:about|of|from|for) "
    r"(?:the )?(?:user|\w+))?[ \t]*[:：]|"
    r"(?:known |key |relevant )?facts about (?:the |this )?user|(?:known|remember(?:ed)?) about "
    r"(?:the |this )?user|user (?:preferences|facts)[ \t]*:",
    others=(
        "用户记忆",
        "ユーザーの記憶",
    ),
)
"""Phrases that announce memories of a user, which are as short as a line."""

UNSURE = Phrases(
    r"don'?t know|do not know|not (?:enough|sufficient)|cannot (?:find|answer|be found)|"
    r"can'?t (?:find|answer)|insufficient|not (?:in|contained in|mentioned in|present in|found in) "
    r"the|prior knowledge|based (?:only|solely|strictly)|"
    r"(?:only|solely|strictly) (?:on|from|using|use|based)|"
    r"weiß(?:t)? (?:es )?nicht|ne sa(?:is|it) pas|no (?:lo )?s[eé]",
    others=(
        "不知道",
        "わからない",
    ),
)
"""Phrases that ask to answer from the given texts, or to admit that the answer is missing."""

ANSWERS = Phrases(r"(?:answers?|question|cite|respond|response|reply)\b")
"""Phrases of an instruction on how to answer, not of a document."""

STEMS = Stems((
    "context", "document", "docs", "passage", "source", "excerpt", "extract", "snippet", "chunk",
    "result", "retriev", "knowledge", "referenc", "evidence", "memor", "information", "article",
    "fact", "background", "quelle", "contesto", "fuente",
    "fonte", "контекст", "документ", "источник", "上下文", "文档", "资料", "資料", "文書", "检索",
    "検索", "文脈",
    "参考", "記憶", "记忆", "문맥", "문서", "검색", "컨텍스트", "コンテキスト", "信息",
    "知识", "ドキュメント", "자료", "paragraph", "konte", "dokum", "remember",
    "bağlam", "źród", "джерел", "πλαίσι", "έγγραφ",
    "سياق", "مستند", "وثائق", "مصادر", "הקשר", "מסמכ", "संदर्भ", "दस्तावे", "บริบท", "เอกสาร",
    "tài liệu", "ngữ cảnh",
))  # fmt: skip
"""One of them is in every phrase above that gives evidence; looked for first, since it is cheap."""

INSTRUCTS = re.compile(
    r"(?:(?:please|now|then|so|remember:?|important:?|note:?|and)[, ]+)?(?:based (?:only |solely )?"
    r"on|using|use|given|according to|with (?:the|this)|from the|referring|considering|"
    r"answer|respond|reply|provide|write|summari[sz]e|explain|tell me|what|which|who|whom|whose|"
    r"when|where|why|how|is|are|was|were|do not|don'?t|does|did|can|could|should|"
    r"if (?:you|the|there)|"
    r"remember|"
    r"only|never|always|make sure|ensure|keep|your (?:task|answer|job)|"
    r"you (?:must|should|are|may|can)|i (?:want|need|would)|let'?s|think|cite|quote|in your|"
    r"name the|list (?:the|all)|describe|identify|find|compare|state|end of|"
    r"the (?:above|question)|instruction|remember|when answer|return|output|avoid|begin|"
    r"beantworte|antworte|répond|responde|rispondi|ответь|cevapla|odpowiedz|jawab|beantwoord)\b|"
    r"请|根据|以上|回答|如果|上記|次の|これら|위|أجب|ענה|उत्तर दें|จงตอบ|hãy trả lời",
    re.IGNORECASE,
)
"""How a paragraph begins that is no document but speaks to the model."""

TOOL = re.compile(
    r"retriev|search|rag|lookup|look_up|knowledge|memor|recall|docs?\b|document|wiki|semantic|"
    r"vector|find_(?:notes|passages|articles)|query_(?:kb|index|docs)|fetch_(?:docs|documents)|faq",
    re.IGNORECASE,
)
"""Names of tools that look documents up."""

READS = re.compile(
    r"(?:^|[_./-])(?i:read|open|view)(?![a-z])|"
    r"(?i:(?:get|fetch|show|download)\w{0,24}(?:page|doc|document|file|article|note|transcript)$)"
)
"""Names of tools that return a single document, whose paragraphs follow each other."""

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
    *(
        "数字",
        "哪一个",
        "哪一篇",
        "どれ",
        "编号",
        "编號",
        "序号",
        "注明",
        "标明",
        "标出",
        "出处",
        "哪个文",
        "哪篇",
        "哪份",
        "哪些文",
    ),
    *(
        "番号",
        "どの文書",
        "どの資料",
        "どのドキュメント",
        "根拠を",
        "번호",
        "어느 문서",
        "어떤 문서",
    ),
    *("출처를", "각주", "رقم", "اذكر المصدر", "أي مستند", "اقتبس"),
)
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
    others=(
        *("相同的顺序", "相同顺序", "按顺序", "最后一个", "最后一篇", "最后一份"),
        *("同じ順", "最初の文書", "最後の文書", "같은 순서", "첫 번째", "마지막 문서"),
    ),
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

CONTINUES = re.compile(
    r"(?:however|then|next|finally|afterwards?|meanwhile|later|also|but|and|so|thus|"
    r"therefore|moreover|furthermore|additionally|consequently|nevertheless|nonetheless|instead|"
    r"similarly|likewise|first(?:ly)?|second(?:ly)?|third(?:ly)?|last(?:ly)?|in (?:addition|"
    r"contrast|conclusion|summary|other words)|for (?:example|instance)|as (?:a result|mentioned|"
    r"noted|above)|on the other hand|he|she|they|it|its|his|her|their|these|those|such|step \d+|"
    r"part \d+|chapter|scene|act|dear|hi|hello|hey|regards|sincerely|thanks|thank you|cheers|"
    r"best|yours|ps|to conclude|after that|before that|until then|the (?:next|following|same|"
    r"latter|former|second|third|last) )\b",
)
"""How a text begins that leans on the one before it; matched against small letters."""

IMPERATIVE = re.compile(
    r"(?:\*\*|`|\[[ xX]\] )?(?:please |always |never |do not |don'?t |first,? |then,? |next,? |"
    r"finally,? |now,? |carefully |optionally,? |you (?:must|should|will|can) )?"
    r"(?:(?:please|never|always|do not|don'?t|you (?:must|should)|must|should) \w|"
    r"(?:install|open|run|click|add|mix|go|create|make|set|use|select|press|write|check|turn|put|"
    r"remove|heat|preheat|bake|place|pour|stir|cut|chop|slice|choose|enter|save|close|start|stop|"
    r"restart|download|upload|copy|paste|type|navigate|log|sign|follow|ensure|verify|test|build|"
    r"deploy|configure|update|delete|move|return|call|find|read|review|identify|provide|do|don'?t|"
    r"never|always|avoid|be|keep|include|explain|describe|list|summari[sz]e|analy[sz]e|compare|"
    r"give|take|let|try|ask|answer|respond|think|consider|determine|extract|generate|output|"
    r"translate|rewrite|format|sort|print|push|pull|commit|clone|fork|merge|rebase|wait|repeat|"
    r"measure|drain|serve|season|whisk|fold|knead|boil|simmer|fry|grill|wash|rinse|dry|attach|"
    r"connect|plug|unplug|loosen|tighten|lift|lower|push|insert|replace|reset|submit|send|reply|"
    r"schedule|plan|define|implement|refactor|fix|import|export|initialize|load|fetch|parse|"
    r"validate|compute|calculate|draw|evaluate|apply|assign|break|bring|buy|call|cover|combine|"
    r"complete|confirm|contact|convert|decide|discuss|document|edit|enable|disable|examine|fill|"
    r"focus|get|help|hold|ignore|limit|look|maintain|mention|monitor|note|only|order|organize|"
    r"pick|prepare|prioriti[sz]e|recommend|record|register|report|search|share|show|split|state|"
    r"store|suggest|support|switch|tell|train|visit|work|beat|spread|grease|mash|peel|reveal|invent|"
    r"disclose|mention|refer|greet|apologi[sz]e|escalate)\b)",
    re.IGNORECASE,
)
"""How a step or a rule begins."""

TURNS = re.compile(
    r"(?:\*\*)?(?:user|assistant|human|ai|bot|system|customer|agent|q|a|question|answer|"
    r"interviewer|from|to|subject|args|arguments|returns?|raises|parameters|params|usage|"
    r"examples?|speaker \w+)(?:[ #]{0,2}\d{1,3})?(?:\*\*)?[ \t]*(?:\(|\[|:)",
    re.IGNORECASE,
)
"""How a turn of a conversation, a mail or a question with its answer begins."""
