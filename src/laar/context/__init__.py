"""Order of the documents in prompts (ContextPilot), so that prompts share longer prefixes.

The hook (`ContextHook` over `OrderIndex`) sees one request at a time, has a millisecond, and must
never fail a request. The paper's algorithms, which know all requests beforehand, are in laar-lab
(`laar context plan`).

Nothing is imported here: a picker without the hook loads the settings alone.
"""
