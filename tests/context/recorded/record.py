"""Records the bodies beside this file with the libraries that build prompts.

Not run by the tests: it needs libraries that laar does not, in an environment of their own.

    python -m venv libs && libs/bin/pip install \
        langchain langchain-classic llama-index-core haystack-ai dspy mem0ai
    libs/bin/python tests/context/recorded/record.py

The documents and questions are ours; everything around them is as the library made it. Versions are
written into each file. No model is called.
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

TITLES = ("Tides", "Basalt", "Lacquer", "Sourdough", "Semaphore", "Alpine swifts")
TEXTS = (
    "Tides rise and fall twice a day on most coasts, because the Moon pulls the near side of the "
    "ocean harder than the far side.",
    "Basalt forms where lava rich in iron cools quickly. Most of the sea floor is made of this "
    "rock.",
    "Urushi lacquer hardens in damp air. Workshops in Wajima keep cabinets at seventy percent "
    "humidity for that reason.",
    "A sourdough starter holds wild yeast and lactic bacteria. Bakers feed the mixture with flour "
    "and water each day.",
    "Optical semaphore lines carried messages across France before the telegraph. One tower passed "
    "a symbol to the next within half a minute.",
    "Alpine swifts stay in the air for up to two hundred days. Researchers found that out with "
    "small loggers.",
)
QUESTION = "How long do swifts stay in the air?"
HERE = Path(__file__).parent


def write(name: str, library: str, shape: str, body: dict[str, Any]) -> None:
    """Writes one file: the body, its library and its shape."""
    record = {"library": library, "version": version(library), "shape": shape, "body": body}
    text = json.dumps(record, indent=1, ensure_ascii=False)
    (HERE / f"{name}.json").write_text(text + "\n")
    sys.stderr.write(f"{name}: {shape}\n")


def chat(messages: list[dict[str, Any]]) -> dict[str, Any]:
    return {"model": "m", "messages": messages}


def langchain() -> None:
    from langchain_classic.chains.combine_documents import create_stuff_documents_chain
    from langchain_classic.chains.qa_with_sources.stuff_prompt import EXAMPLE_PROMPT
    from langchain_classic.chains.qa_with_sources.stuff_prompt import PROMPT as WITH_SOURCES
    from langchain_classic.chains.question_answering.stuff_prompt import CHAT_PROMPT, PROMPT
    from langchain_core.documents import Document
    from langchain_core.language_models import FakeListChatModel
    from langchain_core.messages import convert_to_openai_messages
    from langchain_core.prompts import ChatPromptTemplate, PromptTemplate
    from langchain_core.retrievers import BaseRetriever
    from langchain_core.tools import create_retriever_tool

    documents = [
        Document(page_content=text, metadata={"source": f"{title}.md"})
        for title, text in zip(TITLES, TEXTS, strict=True)
    ]
    seen: list[Any] = []

    class Model(FakeListChatModel):
        def _call(self, messages: Any, *args: Any, **more: Any) -> str:
            seen.append(messages)
            return "x"

    def stuffed(prompt: Any, **more: Any) -> dict[str, Any]:
        chain = create_stuff_documents_chain(Model(responses=["x"]), prompt, **more)
        names = {name: QUESTION for name in prompt.input_variables if name != "context"}
        chain.invoke({"context": documents, **names})
        return chat(convert_to_openai_messages(seen[-1]))

    write("langchain_stuff", "langchain-classic", "paragraphs", stuffed(PROMPT))
    write("langchain_stuff_chat", "langchain-classic", "paragraphs", stuffed(CHAT_PROMPT))
    tutorial = ChatPromptTemplate.from_messages(
        [
            (
                "human",
                "You are an assistant for question-answering tasks. Use the following pieces of "
                "retrieved context to answer the question. If you don't know the answer, just say "
                "that you don't know. Use three sentences maximum and keep the answer concise."
                "\nQuestion: {question} \nContext: {context} \nAnswer:",
            )
        ]
    )
    write("langchain_hub", "langchain-classic", "paragraphs", stuffed(tutorial))
    only = ChatPromptTemplate.from_template(
        "Answer the question based only on the following context:\n{context}\n\n"
        "Question: {question}\n"
    )
    write("langchain_only", "langchain-classic", "paragraphs", stuffed(only))
    ruled = stuffed(only, document_separator="\n\n---\n\n")
    write("langchain_separator", "langchain-classic", "separators", ruled)
    sources = stuffed(
        PromptTemplate(
            template=WITH_SOURCES.template.replace("{summaries}", "{context}"),
            input_variables=["context", "question"],
        ),
        document_prompt=EXAMPLE_PROMPT,
    )
    write("langchain_sources", "langchain-classic", "records", sources)

    class Retriever(BaseRetriever):
        def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
            return documents

    tool = create_retriever_tool(Retriever(), "search_notes", "Searches the notes.")
    found = tool.invoke({"query": QUESTION})
    call = {"id": "call_1", "type": "function"}
    call["function"] = {"name": tool.name, "arguments": json.dumps({"query": QUESTION})}
    messages = [
        {"role": "user", "content": QUESTION},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": found},
    ]
    write("langchain_tool", "langchain-core", "paragraphs", chat(messages))
    listed = "\n\n".join(
        f"Source: {document.metadata}\nContent: {document.page_content}" for document in documents
    )
    messages = [*messages[:2], {"role": "tool", "tool_call_id": "call_1", "content": listed}]
    write("langchain_agentic", "langchain-core", "records", chat(messages))


def llama_index() -> None:
    from llama_index.core.base.llms.types import CompletionResponse, LLMMetadata
    from llama_index.core.llms import CustomLLM
    from llama_index.core.llms.callbacks import llm_completion_callback
    from llama_index.core.query_engine import CitationQueryEngine
    from llama_index.core.response_synthesizers import get_response_synthesizer
    from llama_index.core.retrievers import BaseRetriever
    from llama_index.core.schema import NodeWithScore, TextNode

    prompts: list[str] = []

    class Model(CustomLLM):
        @property
        def metadata(self) -> LLMMetadata:
            return LLMMetadata(context_window=16384, num_output=256, model_name="m")

        @llm_completion_callback()
        def complete(self, prompt: str, formatted: bool = False, **more: Any) -> Any:
            prompts.append(prompt)
            return CompletionResponse(text="x")

        @llm_completion_callback()
        def stream_complete(self, prompt: str, formatted: bool = False, **more: Any) -> Any:
            raise NotImplementedError

    def nodes(**metadata: str) -> list[Any]:
        return [
            NodeWithScore(
                node=TextNode(
                    text=text,
                    id_=f"node-{i}",
                    metadata={key: value.format(title) for key, value in metadata.items()},
                ),
                score=1.0 - i / 10,
            )
            for i, (title, text) in enumerate(zip(TITLES, TEXTS, strict=True))
        ]

    class Retriever(BaseRetriever):
        def _retrieve(self, query_bundle: Any) -> list[Any]:
            return nodes()

    made = get_response_synthesizer(llm=Model(), response_mode="compact")
    made.synthesize(QUESTION, nodes())
    write(
        "llama_index_compact",
        "llama-index-core",
        "paragraphs",
        chat([{"role": "user", "content": prompts[-1]}]),
    )
    write(
        "llama_index_completion",
        "llama-index-core",
        "paragraphs",
        {"model": "m", "prompt": prompts[-1]},
    )
    made.synthesize(QUESTION, nodes(file_name="{}.md", page_label="1"))
    write(
        "llama_index_metadata",
        "llama-index-core",
        "titled_loosely",
        chat([{"role": "user", "content": prompts[-1]}]),
    )
    cited = CitationQueryEngine.from_args(None, llm=Model(), retriever=Retriever())
    cited.query(QUESTION)
    write(
        "llama_index_citation",
        "llama-index-core",
        "labelled",
        chat([{"role": "user", "content": prompts[-1]}]),
    )


def haystack() -> None:
    from haystack import Document
    from haystack.components.builders import ChatPromptBuilder, PromptBuilder
    from haystack.dataclasses import ChatMessage

    documents = [
        Document(content=text, meta={"name": f"{title}.md", "url": f"notes/{title}"})
        for title, text in zip(TITLES, TEXTS, strict=True)
    ]
    plain = """
Given the following information, answer the question.

Context:
{% for document in documents %}
    {{ document.content }}
{% endfor %}

Question: {{question}}
Answer:
"""
    numbered = """
        Given these documents, answer the question.
        Documents:
        {% for doc in documents %}
            Document {{ loop.index }}:
            Document name: {{ doc.meta['name'] }}
            {{ doc.content }}
        {% endfor %}

        Question: {{question}}
        """
    for name, template, shape in (
        ("haystack_loop", plain, "paragraphs"),
        ("haystack_numbered", numbered, "labelled"),
    ):
        builder = PromptBuilder(template=template, required_variables="*")
        prompt = builder.run(documents=documents, question=QUESTION)["prompt"]
        write(name, "haystack-ai", shape, {"model": "m", "prompt": prompt})
        chat_builder = ChatPromptBuilder(
            template=[ChatMessage.from_user(template)], required_variables="*"
        )
        built = chat_builder.run(documents=documents, question=QUESTION)["prompt"]
        body = chat([message.to_openai_dict_format() for message in built])
        write(f"{name}_chat", "haystack-ai", shape, body)


def dspy_() -> None:
    import dspy

    class Answer(dspy.Signature):
        """Answer questions with short factoid answers."""

        context: list[str] = dspy.InputField(desc="may contain relevant facts")
        question: str = dspy.InputField()
        answer: str = dspy.OutputField(desc="often between 1 and 5 words")

    context = [f"{title} | {text}" for title, text in zip(TITLES, TEXTS, strict=True)]
    inputs = {"context": context, "question": QUESTION}
    for name, adapter in (("dspy_chat", dspy.ChatAdapter()), ("dspy_json", dspy.JSONAdapter())):
        write(name, "dspy", "json_list", chat(adapter.format(Answer, [], inputs)))


def mem0_() -> None:
    from unittest import mock

    from mem0.memory.main import Memory
    from mem0.proxy.main import Completions

    facts = (
        "Prefers trains to planes",
        "Is allergic to walnuts",
        "Works as a hydrologist in Utrecht",
        "Plays the viola on Thursdays",
        "Has a dog named Pixel",
        "Wants to see alpine swifts this summer",
    )
    client = mock.create_autospec(Memory, instance=True)
    found = {"results": [{"memory": fact} for fact in facts]}
    proxy = Completions(client)
    question = [{"role": "user", "content": "Where should I travel?"}]
    text = proxy._format_query_with_memories(question, found)
    write("mem0_proxy", "mem0ai", "lines", chat([{"role": "user", "content": text}]))
    listed = "\n".join(f"- {entry['memory']}" for entry in found["results"])
    system = (
        "You are a helpful AI. Answer the question based on query and memories.\n"
        f"User Memories:\n{listed}"
    )
    messages = [{"role": "system", "content": system}, *question]
    write("mem0_chat", "mem0ai", "bullets", chat(messages))


if __name__ == "__main__":
    for make in (langchain, llama_index, haystack, dspy_, mem0_):
        make()
