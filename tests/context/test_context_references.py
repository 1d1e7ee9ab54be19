# ruff: noqa: E501 - prompts are easier to read on one line
"""Prompts that speak of documents by number or place, and texts whose numbers are their own."""

from __future__ import annotations

import json

import orjson
import pytest

from laar.context.doctor import diagnose
from laar.context.hook import ContextHook
from laar.context.settings import ContextSettings, Reason

DOCS = [
    "Employees accrue 1.5 vacation days per month. Unused days expire on March 31 of the next year.",
    "Parental leave is sixteen weeks at full pay for either parent, taken in two blocks at most.",
    "Sick leave requires a medical certificate from day four on, sent to the personnel office.",
    "Travel expenses are refunded within thirty days. Receipts must be attached to the form.",
]
FORMS = {
    "en": ("Document {}:\n", "Use the following documents.\n\n", "\n\nQuestion: "),
    "de": ("Dokument {}:\n", "Beantworte die Frage anhand der Dokumente.\n\n", "\n\nFrage: "),
    "es": ("Documento {}:\n", "Usa los siguientes documentos.\n\n", "\n\nPregunta: "),
    "fr": ("Document {} :\n", "Utilise les documents suivants.\n\n", "\n\nQuestion : "),
    "it": ("Documento {}:\n", "Usa i seguenti documenti.\n\n", "\n\nDomanda: "),
    "pt": ("Documento {}:\n", "Use os seguintes documentos.\n\n", "\n\nPergunta: "),
    "nl": ("Document {}:\n", "Gebruik de volgende documenten.\n\n", "\n\nVraag: "),
    "pl": ("Dokument {}:\n", "Użyj następujących dokumentów.\n\n", "\n\nPytanie: "),
    "ru": ("Документ {}:\n", "Ответь по следующим документам.\n\n", "\n\nВопрос: "),
    "tr": ("Belge {}:\n", "Aşağıdaki belgeleri kullan.\n\n", "\n\nSoru: "),
    "zh": ("文档{}：\n", "请根据以下文档回答问题。\n\n", "\n\n问题："),
    "ja": ("文書{}：\n", "以下の文書に基づいて答えてください。\n\n", "\n\n質問："),
    "ko": ("문서 {}:\n", "다음 문서를 참고하여 답하세요.\n\n", "\n\n질문: "),
    "ar": ("المستند {}:\n", "استخدم المستندات التالية.\n\n", "\n\nالسؤال: "),
}
BY_NUMBER = {
    "en": ["Compare documents 1 and 3.", "What does document no. 3 say?", "What is in document two?", "Summarise documents 2-4.", "Summarise the fourth document.", "Summarise the 2nd document.", "What does the final document say?", "Explain document (2)."],
    "de": ["Was steht in Dokument 2?", "Vergleiche Dokumente 1 und 3.", "Fasse das vierte Dokument zusammen."],
    "es": ["¿Qué dice el documento 2?", "Compara los documentos 1 y 3.", "Resume el cuarto documento."],
    "fr": ["Compare les documents 1 et 3.", "Résume le quatrième document."],
    "it": ["Cosa dice il documento 2?", "Confronta i documenti 1 e 3."],
    "pt": ["O que diz o documento 2?", "Resuma o quarto documento."],
    "nl": ["Vergelijk documenten 1 en 3.", "Vat het tweede document samen."],
    "pl": ["Co jest w dokumencie 2?", "Streść drugi dokument."],
    "ru": ["Что сказано в документе 2?", "Перескажи четвёртый документ."],
    "tr": ["Belge 2 ne diyor?", "2. belge ne diyor?"],
    "zh": ["文档2说了什么？", "比较文档 1 和文档 3。", "总结第2篇文档", "最后一个说了什么？"],
    "ja": ["文書2は何と言っていますか？", "2番目の文書を要約して。"],
    "ko": ["문서 2는 무엇을 말하나요?", "두 번째 문서를 요약하세요."],
    "ar": ["ماذا يقول المستند 2؟", "لخص المستند الثاني."],
}  # fmt: skip
BY_NAMING = {
    "en": ["Which document says so?", "Name the document that says so.", "State the source.", "Answer and give references.", "Attribute each claim to a document.", "Use in-text references.", "Explain #2."],
    "de": ["In welchem Dokument steht das?", "Nenne die Quelle.", "Gib die Nummern der Dokumente an."],
    "es": ["¿En qué documento aparece?", "Indica la fuente."],
    "fr": ["Dans quel document est-ce ?", "Indique la source."],
    "it": ["In quale documento si trova?", "Indica la fonte."],
    "pt": ["Em qual documento?", "Indique a fonte."],
    "nl": ["In welk document?", "Vermeld de bron."],
    "pl": ["Podaj numer dokumentu.", "Podaj źródło."],
    "ru": ["В каком документе?", "Укажи источник."],
    "tr": ["Belge numarasını ver.", "Kaynak göster."],
    "zh": ["请给出文档编号。", "请注明来源。", "哪个文档提到了？"],
    "ja": ["文書番号を答えてください。", "どの文書に書かれていますか？"],
    "ko": ["문서 번호를 알려주세요.", "어느 문서에 있나요?"],
    "ar": ["اذكر رقم المستند.", "اذكر المصدر."],
}  # fmt: skip


def every(table):
    return [(language, ask) for language, asks in table.items() for ask in asks]


def numbered(language, ask):
    label, before, after = FORMS[language]
    docs = "\n\n".join(label.format(i) + doc for i, doc in enumerate(DOCS, 1))
    return chat(("user", before + docs + after + ask))


def chat(*messages):
    return {"messages": [{"role": role, "content": text} for role, text in messages]}


def bare(ask, tag="<document>"):
    docs = "\n".join(f"{tag}{doc}</{tag[1:].split()[0].strip('>')}>" for doc in DOCS)
    return chat(("user", f"Use the following documents.\n\n{docs}\n\n{ask}"))


def movable(body):
    return diagnose(orjson.dumps(body)).movable


CHOOSES = [
    "Output only the number.", "Answer with 1, 2, 3 or 4.", "Which one answers it?", "Return the index.", "Select the best and return its ID.",
    'Return {"best": <int>}.', "Use only 1 and 3.", "Give me a one-line summary of each.", "Put the source in brackets.", "Answer with sources.",
    "Mark each sentence with the number of its source.", "Mark it like [^1^].", "Where did you find it?", "Return scores.", "Which of these contains it?",
    "Label them.", "Are they in the right order?", "Summarise them one after another.", "Skip the first.", "Antworte nur mit der Nummer.",
    "Réponds avec le numéro.", "Responde solo con el número.", "请只回答数字。",
]  # fmt: skip
SCHEMA = {"type": "object", "properties": {"facts": {"items": {"type": "integer"}}}}
TOOL = {"type": "function", "function": {"name": "answer", "parameters": SCHEMA}}
FORM = [
    {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}},
    {"text": {"format": {"type": "json_schema", "name": "a", "schema": SCHEMA}}},
    {"guided_json": SCHEMA},
    {"structured_outputs": {"choice": ["1", "2", "3"]}},
    {"guided_regex": "[1-4]"},
    {"tools": [TOOL], "tool_choice": "required"},
    {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "answer"}}},
]
FREE_FORM = [
    {"response_format": {"type": "json_object"}},
    {"response_format": None, "text": None},
    {"tools": [TOOL], "tool_choice": "auto"},
    {"guided_json": {"type": "object", "properties": {"answer": {"type": "string"}}}},
]


class TestAnswersThatChoose:
    @pytest.mark.parametrize("ask", CHOOSES)
    def test_a_text_never_moves_below_a_number_that_the_answer_may_hold(self, ask):
        assert movable(numbered("en", ask)) == 0

    @pytest.mark.parametrize("ask", ["What is the number of days?", "Answer in 3 to 5 words."])
    def test_a_count_is_no_choice(self, ask):
        assert movable(numbered("en", ask)) == 4

    @pytest.mark.parametrize("form", FORM)
    def test_so_does_a_form_of_the_answer_with_a_place_for_it(self, form):
        assert movable(numbered("en", "How many days?") | form) == 0
        assert movable(bare("How many days?") | form) == 4

    @pytest.mark.parametrize("form", FREE_FORM)
    def test_a_form_without_one_does_not(self, form):
        assert movable(numbered("en", "How many days?") | form) == 4


CLOSED = [
    "<doc{n}>{text}</doc{n}>\n",
    "[document {n}]{text}[/document {n}]\n",
    "<document_{n}>\n{text}\n</document_{n}>\n",
    "--- Document {n} ---\n{text}\n--- End of Document {n} ---\n",
]


class TestClosingMarks:
    @staticmethod
    def turned(made):
        """The bodies that the hook makes of the same documents, received in two orders."""
        hook = ContextHook(ContextSettings(holdout_share=0.0, annotate=False))
        call = {"api": "chat", "tenant": "", "route": "r", "mode": "on"}
        first, second = (json.dumps(made(order)).encode() for order in ((0, 1, 2, 3), (3, 1, 2, 0)))
        one = hook.apply(first, now=0.0, **call)
        hook.commit(one.receipt, 0.0)
        other = hook.apply(second, now=1.0, **call)
        assert {one.reason, other.reason} & {Reason.REORDERED}
        return one.body, other.body

    @pytest.mark.parametrize("form", CLOSED)
    def test_a_mark_with_the_number_stays_with_the_place(self, form):
        def made(order):
            docs = "".join(form.format(n=i, text=DOCS[at]) for i, at in enumerate(order, 1))
            return chat(("user", f"Use the documents.\n\n{docs}\nQuestion: How many days?"))

        first, sent = self.turned(made)
        assert sent == first

    @pytest.mark.parametrize("form", CLOSED)
    def test_so_it_does_in_blocks_of_their_own(self, form):
        def made(order):
            texts = [form.format(n=i, text=DOCS[at]) for i, at in enumerate(order, 1)]
            texts.append("How many days?")
            content = [{"type": "text", "text": text} for text in texts]
            return {"messages": [{"role": "user", "content": content}]}

        first, sent = self.turned(made)
        assert sent == first

    def test_documents_stay_where_one_has_no_mark(self):
        docs = "".join(f"<doc{i}>{doc}</doc{i}>\n" for i, doc in enumerate(DOCS, 1))
        assert (
            movable(chat(("user", f"Use the documents.\n\n{docs.replace('</doc3>', '')}\nHow?")))
            == 0
        )


class TestReferences:
    @pytest.mark.parametrize(("language", "ask"), every(BY_NUMBER) + every(BY_NAMING))
    def test_what_speaks_of_numbers_keeps_them(self, language, ask):
        told = diagnose(orjson.dumps(numbered(language, ask)))
        assert (told.documents, told.movable, told.reason) == (4, 0, "positional_labels")

    @pytest.mark.parametrize(("language", "ask"), every(BY_NUMBER))
    def test_a_number_is_a_place_where_documents_have_none(self, language, ask):
        assert movable(bare(ask)) == 0

    @pytest.mark.parametrize("language", FORMS)
    def test_a_question_about_the_matter_holds_nothing(self, language):
        assert movable(numbered(language, "15 / 2 = ?")) == 4

    def test_documents_with_numbers_of_their_own_may_be_named_by_them(self):
        docs = "\n".join(f'<document id="{17 * i}">{doc}</document>' for i, doc in enumerate(DOCS))
        assert movable(chat(("user", f"{docs}\n\nWhat does document 34 say?"))) == 4

    @pytest.mark.parametrize(
        "ask",
        [
            "Translate the following documents into French.",
            "Classify the sentiment of these documents. Return a list of labels.",
            "Proofread these sections and give the corrected text back.",
            "Here are four documents. I wrote the last one myself.",
            "Output four numbers separated by commas.",
            "Build a timeline from these documents.",
            "It was split into parts; each part continues the previous one.",
            "Earlier sources beat later ones.",
            "Most reliable ones first; on conflict the former wins.",
            "How does the tone change from one to the next?",
            "Cite like this: [1].",
            "If documents conflict, trust the one listed higher.",
            "Documents (sorted by date):",
            "These are snippets of a conversation in the order they were said.",
        ],
    )
    def test_tasks_that_keep_the_order_hold_all(self, ask):
        assert movable(bare(ask)) == 0

    @pytest.mark.parametrize(
        "ask",
        [
            "Provide a detailed answer to the question from the documents.",
            "The documents are in descending order of relevance. How many days?",
            "Translate the answer into French. How many days?",
            "Cite in the format [id] (e.g. [1]) where the tag has an id. How many days?",
            "If the documents do not say so, say that you don't know.",
        ],
    )
    def test_ordinary_requests_hold_nothing(self, ask):
        assert movable(bare(ask)) == 4

    def test_a_document_that_names_another_keeps_its_number(self):
        docs = "\n\n".join(f"Document {i}: {doc}" for i, doc in enumerate(DOCS, 1))
        docs = docs.replace("most.", "most (see Document 3).")
        assert movable(chat(("user", f"Use these documents.\n\n{docs}\n\nHow many days?"))) == 0


CITE = "When you answer, put the number of the source in brackets, like [2], behind each claim."
FILL = (
    "You are the assistant of a small company. Be polite, be brief and stay with the facts. " * 40
)


class TestRulesFarFromTheDocuments:
    def test_in_the_middle_of_a_long_system_prompt(self):
        body = numbered("en", "How many days?")
        body["messages"].insert(0, {"role": "system", "content": FILL + CITE + FILL})
        assert movable(body) == 0

    def test_in_the_system_prompt_of_a_long_conversation(self):
        call = {"id": "c", "type": "function", "function": {"name": "search", "arguments": "{}"}}
        turns = [m for i in range(6) for m in (("user", f"Question {i}"), ("assistant", "Well."))]
        body = chat(("system", CITE), *turns, ("user", "How many days?"))
        docs = "\n\n".join(f"Document {i}: {doc}" for i, doc in enumerate(DOCS, 1))
        body["messages"] += [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": docs},
        ]
        assert movable(body) == 0

    def test_in_an_earlier_turn(self):
        body = numbered("en", "How many days?")
        body["messages"][:0] = chat(("user", CITE), ("assistant", "I will."))["messages"]
        assert movable(body) == 0


class Conversation:
    """Turns of a client that sends its whole history each time."""

    def __init__(self, docs, **settings):
        self.hook = ContextHook(ContextSettings(holdout_share=0.0, dedup="off", **settings))
        self.now = 0.0
        self.send(chat(*docs(DOCS)))
        self.history = list(docs(DOCS[::-1]))

    def send(self, body):
        self.now += 1.0
        made = self.hook.apply(
            orjson.dumps(body), api="chat", tenant="", route="r", now=self.now, mode="on"
        )
        self.hook.commit(made.receipt, self.now)
        return orjson.loads(made.body)["messages"]

    def ask(self, *question):
        if question:
            self.history += [("assistant", "Ten."), ("user", *question)]
        return self.send(chat(*self.history))[:1]


def in_tags(docs):
    block = "\n".join(f"<document>{doc}</document>" for doc in docs)
    return [("user", f"Use the following documents.\n\n{block}\n\nHow many days?")]


class TestLaterTurns:
    @pytest.mark.parametrize(
        "question",
        ["And in chronological order?", "Newest first, please.", "Make a timeline of it."],
    )
    def test_wishes_for_the_answer_change_nothing_sent_before(self, question):
        talk = Conversation(in_tags)
        sent = talk.ask()
        assert sent[0]["content"] != talk.history[0][1]
        assert talk.ask(question) == sent

    def test_a_place_named_later_is_that_of_the_client_from_then_on(self):
        talk = Conversation(in_tags)
        received = talk.history[0][1]
        assert talk.ask()[0]["content"] != received
        assert talk.ask("What does the second document say?")[0]["content"] == received
        assert talk.ask("And how many days is that?")[0]["content"] == received


class TestNumbersOfTheirOwn:
    def test_a_page_keeps_its_number(self):
        docs = "\n".join(f'<document page="{i}">{doc}</document>' for i, doc in enumerate(DOCS, 1))
        told = diagnose(orjson.dumps(chat(("user", f"{docs}\n\nHow many days?"))))
        assert (told.movable, told.reason) == (0, Reason.POSITIONAL_LABELS)

    @pytest.mark.parametrize("field", ["page", "chunk_index", "chapter"])
    def test_a_part_of_a_text_keeps_its_number(self, field):
        rows = [{field: i, "title": f"t{i}", "snippet": doc} for i, doc in enumerate(DOCS, 1)]
        assert movable(chat(("user", json.dumps({"results": rows})))) == 0

    @pytest.mark.parametrize(
        "head", ["Chapter {}\n", "Step {}: ", "Draft {}: ", "第{}章 ", "§ {} "]
    )
    def test_chapters_stay(self, head):
        docs = "\n".join(
            f"<document>{head.format(i)}{doc}</document>" for i, doc in enumerate(DOCS)
        )
        assert movable(chat(("user", f"{docs}\n\nHow many days?"))) == 0

    @pytest.mark.parametrize(
        "text",
        [
            "READING\n\n" + "\n\n".join(f"Passage {i}\n{doc}\n\nQuestions {3 * i}-{3 * i + 2}\nTrue or false?" for i, doc in enumerate(DOCS, 1)),
            "\n\n".join(f"Document {i}: {doc}\nSummary {i}: It is short." for i, doc in enumerate(DOCS, 1)) + "\n\nDocument 5: New.\nSummary 5:",
            "\n\n".join(f"Source {i}: {doc}\nTarget {i}: {doc.upper()}" for i, doc in enumerate(DOCS, 1)) + "\n\nSource 5: New.\nTarget 5:",
            "<files>\n" + "\n".join(f'<file path="src/a{i}.py">\n# {doc}\n</file>' for i, doc in enumerate(DOCS)) + "\n</files>\n\nFix the test.",
            "\n".join(f'<document index="{i}">\n<source>src/a{i}.ts</source>\n<document_content>\n// {doc}\n</document_content>\n</document>' for i, doc in enumerate(DOCS, 1)),
            "\n".join(f'<context speaker="{"AB"[i % 2]}">{doc}</context>' for i, doc in enumerate(DOCS)),
            json.dumps({"title": "Rules", "paragraphs": DOCS}),
            json.dumps({"results": [{"id": i, "content": doc, "status": "pending"} for i, doc in enumerate(DOCS)]}),
            json.dumps({"results": [{"start": i, "end": i + 1, "text": doc} for i, doc in enumerate(DOCS)]}),
            json.dumps({"data": [{"body": doc, "user": {"login": "a"}, "url": "u"} for doc in DOCS]}),
            "Context:\n\n" + "\n\n".join(f"## 1.{9 - i}.0\n\n{doc}" for i, doc in enumerate(DOCS)) + "\n\nUse the context above. Question: what is new?",
        ],
    )  # fmt: skip
    def test_what_is_no_list_of_documents_is_left_alone(self, text):
        assert diagnose(orjson.dumps(chat(("user", text)))).documents == 0
