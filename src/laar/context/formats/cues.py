"""Lines that begin another part of a prompt than its documents, in several languages.

Each is looked for with a line end before it. Text of ASCII, which most is, is searched in small
letters: that is five times as fast as to ignore case, and finds the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_ASKED = (
    r"(?:user |original |current |my |the |final |input |latest )?(?:question|query|request|"
    r"user input|task|prompt|inquiry|utterance)|q|user|human|frage|anfrage|pregunta|consulta|"
    r"pergunta|domanda|vraag|pytanie|soru|pertanyaan"
)
_ASKED_WIDE = (
    r"вопрос|запрос|问题|用户问题|問題|質問|질문|запитання|питання|ερώτηση|السؤال|سؤال|שאלה|"
    r"प्रश्न|सवाल|คำถาม|câu hỏi"
)
_ANSWERED = (
    r"(?:helpful |final |your |short |the |refined |assistant |detailed |concise |best )?"
    r"(?:answer|response|output|reply)|assistant|ai|a|antwort|respuesta|resposta|"
    r"risposta|antwoord|cevap|yanit|jawaban"  # who ignores case takes `yanıt` for `yanit`
)
_ANSWERED_WIDE = (
    r"réponse|ответ|回答|答案|답변|odpowiedź|відповідь|απάντηση|الجواب|الإجابة|תשובה|"
    r"उत्तर|คำตอบ|trả lời"
)


def _cue(marks: str, cues: str, ends: str) -> re.Pattern[str]:
    return re.compile(rf"\n{marks}{cues}{ends}", re.IGNORECASE)


def _small_cue(marks: str, cues: str, ends: str) -> re.Pattern[str]:
    """The same for ASCII in small letters, where the first sign of a line mostly decides."""
    letters = "".join(sorted(set(re.findall(r"(?:\||\(\?:|>)([a-z])", cues))))
    return re.compile(rf"\n(?=[ \t#>*+\[_<{letters}-]){marks}(?=[{letters}]){cues}{ends}")


_BEFORE = r"[ \t]*+(?:[#>]{1,6}[ \t]*+|[-*+][ \t]++|\[+[ #]*)?(?:\*\*|__|<)?"
_BEHIND = r"(?:[ \t]?\([^()\n]{0,40}\))?(?:\*\*|__)?[ #]*(?:[:：>]|\]\]|(?=\n))"
_QUESTION = _cue(
    _BEFORE,
    rf"(?:(?P<asked>{_ASKED}|{_ASKED_WIDE})|(?P<answered>{_ANSWERED}|{_ANSWERED_WIDE}))",
    _BEHIND,
)
_SMALL_QUESTION = _small_cue(
    _BEFORE, rf"(?:(?P<asked>{_ASKED})|(?P<answered>{_ANSWERED}))", _BEHIND
)

_PARTS = (
    r"[ \t]*+(?:[#>]{1,6}[ \t]*+|[-*+][ \t]++)?(?:\*\*|<)?",
    r"(?:(?:chat|conversation|message|dialog(?:ue)?|previous|"
    r"current|recent)[ _-]?(?:history|conversation|messages|turns|log)|history|instructions?|"
    r"guidelines|rules|constraints|output format|response format|entities|"
    r"user profile|today|current (?:date|time)|"
    r"end of (?:the )?[\w ]{0,40}(?:results|documents|context|sources|passages)\.?)",
    r"[ \t]*(?:\*\*)?(?:[:：>]|(?=\n))",
)
_OTHER = _cue(*_PARTS)
_SMALL_OTHER = _small_cue(*_PARTS)


def questions(text: str) -> Iterator[re.Match[str]]:
    """Lines that announce the question (group ``asked``) or the answer (``answered``)."""
    if text.isascii():
        return _SMALL_QUESTION.finditer(text.lower())
    return _QUESTION.finditer(text)


def has_question(text: str) -> bool:
    """Whether there is one, be it in the first line."""
    return next(questions(f"\n{text}"), None) is not None


def announces_question(text: str) -> bool:
    """Whether a text begins with such a line."""
    return _QUESTION.match(f"\n{text}") is not None


def other_parts(text: str) -> Iterator[re.Match[str]]:
    """Lines of other parts, where documents end at the latest."""
    if text.isascii():
        return _SMALL_OTHER.finditer(text.lower())
    return _OTHER.finditer(text)
