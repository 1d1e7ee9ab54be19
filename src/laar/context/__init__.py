"""Order of the documents in prompts (ContextPilot), so that prompts share longer prefixes.

Two halves that share little. The hook (`ContextHook` over `OrderIndex`) sees one request at a time,
has a millisecond, and must never be the reason that a request fails. The paper's algorithms, which
know all requests beforehand, are laar-lab's (`laar context plan`).

Nothing is imported here: a picker without the hook loads the settings alone.
"""
