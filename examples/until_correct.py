"""Ask through Envoy until the answer is right, and print the attempts."""

import asyncio
import sys

from laar import until_correct


def is_right(answer: str) -> bool:
    """Return whether an answer contains the product. Any check by a program will do."""
    return "391" in answer.replace(",", "")


async def main(base_url: str) -> None:
    """Ask one question, in at most four attempts, each by a model that has not failed yet."""
    outcome = await until_correct(
        [{"role": "user", "content": "What is 17 times 23? Answer with the number."}],
        check=is_right,
        base_url=base_url,
        max_attempts=4,
    )
    verdict = "right" if outcome.correct else "not right"
    models = ", ".join(attempt.model or "?" for attempt in outcome.attempts)
    print(f"{verdict} after {outcome.ttca_s:.2f} s; asked: {models}")
    if error := outcome.attempts[-1].error:
        print(f"the last attempt failed: {error}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8080"))
