"""Words that show documents in a prompt, and where they begin and end, in several languages.

Plain lists, separate from the code that uses them. A missing word costs gain; a superfluous one may
cost an order that had a meaning, so each list errs to the short side.
"""

from __future__ import annotations

import re

from laar.context.formats.phrases import Phrases
from laar.context.formats.stems import Stems

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
    seconds = "".join(sorted({word[1] for word in beginnings}))
    seconds += seconds.upper()
    words = "|".join(f"{_any_case(first)}(?:{'|'.join(rest)})" for first, rest in by_letter.items())
    if ascii_only:  # fewer classes of signs to ask for
        # All signs but a line end and those that end a label, as ranges: negated ones are slower.
        others = r"[\x00-\x09\x0b-/;-^`-\x7f]"
        longest = 24 + max(map(len, beginnings))
        return re.compile(
            rf"\n[ \t#*+>=_\-\[(<{{]*+(?=[{letters}][{seconds}])"
            # Most lines with such a word have no end of a label, and this is found first.
            rf"(?={others}{{0,{longest}}}+[0-9:_])(?:{words})(?={others}{{0,24}}+[0-9:_])"
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

_WIDE_BEGINNINGS = (
    "arti", "name", "value", "rel", "score", "be", "ka", "br", "ki", "kä", "zd", "su", "tà", "ng",
)  # fmt: skip
RARE = ("\nName:", "\n  Name:", "\nArticle ", "\nPage:")
HEADS_WIDE = _heads(
    (*_BEGINNINGS, *_WIDE_BEGINNINGS),
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
    others=("用户记忆", "ユーザーの記憶"),
)
"""Phrases that announce memories of a user, which are as short as a line."""

UNSURE = Phrases(
    r"don'?t know|do not know|not (?:enough|sufficient)|cannot (?:find|answer|be found)|"
    r"can'?t (?:find|answer)|insufficient|not (?:in|contained in|mentioned in|present in|found in) "
    r"the|prior knowledge|based (?:only|solely|strictly)|"
    r"(?:only|solely|strictly) (?:on|from|using|use|based)|"
    r"weiß(?:t)? (?:es )?nicht|ne sa(?:is|it) pas|no (?:lo )?s[eé]",
    others=("不知道", "わからない"),
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
    r"the (?:above|question)|instruction|when answer|return|output|avoid|begin|"
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
