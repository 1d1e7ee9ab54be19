"""The contract of plug-ins: features that the core neither imports nor names.

A plug-in is one object for the life of a picker. It overrides the points that it needs, which are
asked in this order; `docs/guides/write-a-plugin.md` has an example.

| point | asked when | may |
| --- | --- | --- |
| `join` | once, before the first request | keep the parts of the core that it needs |
| `use` | settings were read, or have changed | keep its own |
| `admit` | a request names another, has options, or a body in doubt | refuse it, narrow it |
| `filter` | a model's candidates are computed: once a second | take part in their requests |
| `variants` | a policy that knows of retries has candidates | add ways to ask their models |
| `fit`, `fit_prefill` | candidates have to take a request, or its prefill | say which can |
| `prescore` | the view is complete, but not priced | replace its part; correct the view |
| `price` | each candidate's seconds are known | replace them, and name those that it added |
| `score` | the cost is known | replace it, with a reason |
| `keep` | the candidates are scored, or one is drawn by load | prefer some of them |
| `pick` | the scores are known | name the candidate that serves, rather than the best |
| `select` | a winner is known | refuse it; put its part into the decision |
| `reserve` | the request is counted at its endpoint | count its own |
| `move` | Envoy reports that another endpoint serves | count there instead |
| `replied` | the answer's status is known, or a later error | learn |
| `answering` | the answer has begun | count the prefill no more |
| `complete` | the answer has ended, with what was seen | learn, release |
| `failed` | an attempt of any request failed | learn |
| `gone` | an engine is found dead | learn |
| `leave` | an endpoint is gone | forget it |
| `refused` | an engine refused a request, with this text | learn |
| `restarted`, `read` | an engine has restarted; its metrics page was read | forget or learn |
| `holds` | an endpoint drains | say that it is still needed |
| `save`, `restore` | a snapshot is written or read | keep what it learned over a restart |
| `headers`, `members`, `answers` | the request is sent, or the answer | add its own |
| `record`, `why`, `sentence` | a decision is shown | add its own |
| `problems` | endpoints are looked after | tell an operator |
| `samples` | laar's own metrics page is read | give the values of its metrics |

A plug-in takes part in a request if `filter` or `admit` returned a part for it, and until a later
point returns None. So a request without special needs costs one look at an empty mapping, whatever
the number of plug-ins. While a plug-in is in `Plugins.wary`, `admit`, `reserve`, `move` and
`complete` are called for every request.

If a point raises anything but a `RequestError`, the plug-in is left out of the rest of that
request and its failure is counted; from `prescore` to `pick` the decision's reason says so
(``degraded-NAME``).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from operator import attrgetter, methodcaller
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, Self, TypeVar

import numpy as np

from laar.errors import RequestError
from laar.fleet.endpoints import EndpointTable, Floats, Mask, Reading, Slots

if TYPE_CHECKING:
    from laar.core.candidates import Candidates, Group
    from laar.core.cost import Price, Terms
    from laar.core.decision import Completion, Decision, DirectorSettings
    from laar.core.guards import Faults
    from laar.core.interfaces import Assessor, View
    from laar.faults import Fault
    from laar.health import Health, Reply, Standing
    from laar.prefix.beliefs import PrefixBeliefs
    from laar.prefix.blocks import Chain
    from laar.prefix.match import PrefixMatch
    from laar.request import Request
    from laar.speeds.engines import Engines

Answering = Callable[[str, Slots], tuple[Slots, Floats]]
"""Returns those of some endpoints that are up and healthy, and P(it answers) of each.

The first argument says what they would be to a request, of those in `Part.shared`."""

T = TypeVar("T", bound="Plugin")
A = TypeVar("A")


class Core(Protocol):
    """What a plug-in may use of the core."""

    table: EndpointTable
    candidates: Candidates
    settings: DirectorSettings
    engines: Engines
    health: Health
    plugins: Plugins
    assessor: Assessor
    prefixes: PrefixBeliefs | None


class Pricing(Protocol):
    """The seconds of a request at each candidate, and what they would be otherwise."""

    price: Price

    def again(self, *, cached_tokens: Floats, after_s: Floats) -> Price:
        """Return the price with other cached tokens, if the request begins `after_s` later."""

    def prefilled(self, slots: Slots, **of: Any) -> Price:
        """Return the price of the prompt at other endpoints, as that of a one-token answer."""

    def pair(self, then_s: Floats, cost_s: Floats, reading: Price, transfer_s: Floats) -> Price:
        """Return the price at each candidate if another endpoint prefills for it."""


class Part:
    """What a plug-in adds to a view or a decision; a subclass has the fields.

    In a view:
        at: returns the part for some of the candidates.

    In a decision:
        alike: fallbacks must serve the same model.
        elsewhere_tokens: prompt tokens that the endpoint gets from elsewhere, not by prefill.
        shared: what it may share with other requests, and so what may be at fault if they fail
            (`laar.health.suspects`), by kind.
        reads: the endpoint prefills the prompt itself.
        teaches: the time of the answer says how fast the endpoint is.
        variant: the variant that is asked instead of the endpoint's model; empty for none.
    """

    alike: ClassVar[bool] = False
    reads: ClassVar[bool] = True
    teaches: bool = True
    elsewhere_tokens: float = 0.0
    variant: str = ""

    @property
    def helper(self) -> int:
        """Slot of another endpoint that takes part, and so is no fallback; -1 if there is none."""
        return -1

    @property
    def shared(self) -> Mapping[str, str]:
        """What it may share with other requests."""
        return {}

    @classmethod
    def among(cls, parts: Parts) -> Self | None:
        """Return the part of this class; None if there is none."""
        return next((part for part in parts.values() if isinstance(part, cls)), None)

    def at(self, positions: Slots) -> Self:
        """Return the part for some of the candidates, in the order of `positions`."""
        return self


class Reach(NamedTuple):
    """Where a request may go besides the endpoint that is chosen.

    Args:
        places: addresses that it may reach.
        more: how many others it may reach, the chosen one included.
    """

    places: frozenset[str]
    more: int

    def within(self, chosen: str, found: tuple[str, ...]) -> tuple[str, ...]:
        """Return those of some fallbacks that it may reach."""
        if self.more > (chosen not in self.places):
            return found[:1]
        return tuple(address for address in found if address in self.places)


@dataclass(slots=True, kw_only=True)
class Admitted:
    """What a plug-in knows of a special request before there are candidates.

    Args:
        part: its part; None if it takes no part.
        subset: addresses that may serve the request; None leaves them as they are.
        reach: limits its repeats; None leaves them as they are.
        tried: models to count as tried, besides those of the request.
        unless_sole: the error if more than one endpoint could serve it; None for none.
        unless_priced: the error if the request is placed without a price; None for none.
    """

    part: Part | None = None
    subset: frozenset[str] | None = None
    reach: Reach | None = None
    tried: tuple[str, ...] = ()
    unless_sole: RequestError | None = None
    unless_priced: RequestError | None = None


class Meter(NamedTuple):
    """A metric of a plug-in.

    Args:
        name: its name, from ``laar_`` on; a counter's ends in ``_total``.
        kind: ``counter`` or ``gauge``.
        labels: the names of its labels, of few values each.
        help: what it counts.
    """

    name: str
    kind: str
    labels: tuple[str, ...]
    help: str


Sample = tuple[Meter, tuple[str, ...], float]
"""A value of a metric, with the values of its labels."""


class Plugin:
    """Base of all plug-ins: each point does nothing."""

    name: ClassVar[str]
    """Its name in settings, reasons and metrics."""
    term: ClassVar[str] = ""
    """The name of the seconds that it adds, as the record of a decision shows them."""
    sends: ClassVar[tuple[str, ...]] = ()
    """The names of its `headers`, which clients may not set."""
    reads: ClassVar[tuple[str, ...]] = ()
    """The names of clients' headers that it finds in `Request.given`; only of laar's own."""
    meters: ClassVar[tuple[Meter, ...]] = ()
    """Its metrics."""
    points: ClassVar[frozenset[str]] = frozenset()
    """The points that it overrides."""

    def __init_subclass__(cls) -> None:
        every = (name for name, of in vars(Plugin).items() if callable(of))
        cls.points = frozenset(at for at in every if getattr(cls, at) is not getattr(Plugin, at))

    def join(self, core: Core) -> None:
        """Keep the parts of the core that are needed. Called once."""

    def use(self, settings: Mapping[type, Any]) -> None:
        """Keep those of its settings, which are dataclasses, by their class."""

    def admit(self, request: Request, now: float) -> Admitted | None:
        """Return what is known of a special request; None to take no part.

        While it is one of the `wary`, a plug-in is asked about every request.

        Raises:
            RequestError: the request is refused.
        """

    def filter(self, group: Group, able: Slots, answering: Answering, now: float) -> Part | None:
        """Return a part for all requests of a group; None to take no part in them.

        Args:
            group: the candidates.
            able: all endpoints that serve the model, those that take no requests included.
            answering: selects the healthy ones of some endpoints.
            now: monotonic seconds.
        """

    def variants(self, request: Request, part: Any, group: Group) -> Group | None:
        """Return the group with more ways to ask models (`Group.with_variants`); None for none.

        Their names are in the table (`use_variants`). The part of a decision on one names it
        (`Part.variant`), and `members` may change the body. If `prescore` fails, or the assessor
        or the prefixes do, the request is placed without any.
        """

    def fit(
        self, request: Request, chain: Chain | None, slots: Slots, tokens: Floats, now: float
    ) -> Mask | None:
        """Return which endpoints can take a request; None if all can.

        The others are neither candidates nor fallbacks.

        Args:
            request: the request.
            chain: its prompt's prefixes; None if unknown.
            slots: the endpoints, at least one.
            tokens: length of the prompt (all of a batch) in the tokens of each.
            now: monotonic seconds.
        """

    def fit_prefill(self, request: Request, slots: Slots, tokens: Floats) -> Mask | None:
        """Return which endpoints can prefill for another; None if all can."""

    def prescore(
        self, view: View, part: Any, group: Group, match: PrefixMatch | None
    ) -> Part | None:
        """Return the part for this request; None to take no part in it."""
        own: Part = part
        return own

    def price(self, view: View, part: Any, pricing: Pricing) -> tuple[Price, Floats] | None:
        """Return other seconds for each candidate, and those added; None to change nothing."""

    def score(self, view: View, part: Any, terms: Terms) -> None:
        """Change the cost (`terms.cost_s`), or the view's reason."""

    def keep(self, request: Request, part: Any, slots: Slots, now: float) -> Mask | None:
        """Return which candidates to prefer; None for all.

        A plug-in with this point also takes part in requests whose body is not read, and so have
        no view.
        """

    def pick(
        self, view: View, standing: Standing, may: Mask | None, scores: Floats
    ) -> tuple[int, Part] | None:
        """Return the candidate that serves instead of the best one, and the decision's part.

        The reason of the decision is then the plug-in's name. Return None to leave the choice.

        Args:
            view: the view, with the terms of a policy that computes a cost.
            standing: the candidates' health.
            may: the eligible candidates; None means all.
            scores: their scores.
        """

    def select(self, view: View, part: Any, at: int) -> Part | None:
        """Return the part for the decision on the candidate at `at`; None for none.

        Raises:
            RequestError: the request is refused.
        """

    def reserve(self, decision: Decision, now: float) -> None:
        """Count a request that goes to its endpoint."""

    def move(self, decision: Decision, now: float) -> None:
        """Count a request at the endpoint that serves it (`decision.flight`) instead."""

    def replied(self, decision: Decision, reply: Reply, now: float, excused: bool) -> None:
        """Learn from the answer's status; `excused` if a failure is the request's own fault."""

    def answering(self, decision: Decision, now: float, ok: bool) -> None:
        """Count the prefill no more: the answer has begun, or the request is refused."""

    def complete(self, decision: Decision, end: Completion) -> None:
        """Learn from a request that has ended, and release it."""

    def failed(self, decision: Decision, slot: int, now: float) -> None:
        """Learn that a request failed at a slot where its body may have arrived."""

    def gone(self, slot: int, now: float) -> None:
        """Learn that a slot's engine refuses connections, or has restarted."""

    def leave(self, slot: int) -> None:
        """Forget a slot whose endpoint was removed."""

    def refused(self, decision: Decision, text: bytes, now: float) -> None:
        """Learn from the text with which an engine refused a request."""

    def restarted(self, slot: int) -> None:
        """Forget what an engine that has restarted has lost."""

    def read(self, slot: int, reading: Reading) -> None:
        """Learn from a metrics page."""

    def holds(self, slot: int, now: float) -> bool:
        """Return whether an endpoint that drains is still needed."""
        return False

    def save(self) -> object:
        """Return what survives a restart, as plain values, with addresses instead of slots."""

    def restore(self, saved: object) -> None:
        """Restore a result of `save`, which anybody may have written; skip what is invalid."""

    def headers(self, decision: Decision) -> Iterable[tuple[str, str]]:
        """Return headers for the engine or its sidecar."""
        return ()

    def members(self, decision: Decision) -> bytes:
        """Return JSON to insert after the opening brace of the body; only of new members."""
        return b""

    def answers(self, decision: Decision, now: float) -> Iterable[tuple[str, str]]:
        """Return headers for the client, to which the engine has answered by `now`."""
        return ()

    def record(self, decision: Decision) -> Mapping[str, object]:
        """Return fields for the record of the decision; those without a value are left out."""
        return {}

    def why(self, decision: Decision) -> str:
        """Return why the endpoint won, to follow its name; empty if the plug-in did not decide."""
        return ""

    def sentence(self, decision: Decision) -> str:
        """Return what else to say about the decision, as whole sentences; empty for nothing."""
        return ""

    def problems(self) -> Iterable[tuple[Fault, str, str]]:
        """Return what an operator should know: the fault, whose it is, and a sentence."""
        return ()

    def samples(self) -> Iterable[Sample]:
        """Return the values of its metrics."""
        return ()


class Parts(dict[Plugin, Part]):
    """Parts by plug-in, with the points at which any of these plug-ins is asked."""

    __slots__ = ("points",)

    def __init__(self, parts: Iterable[tuple[Plugin, Part]] = ()) -> None:
        super().__init__(parts)
        self.points = frozenset[str]().union(*map(attrgetter("points"), self))


NO_PARTS = Parts()


class Plugins:
    """The plug-ins of a director, asked in the order in which they are listed.

    Args:
        plugins: the plug-ins.
        faults: counts failures.
        report: called with each plug-in that failed, and the error.
    """

    def __init__(
        self,
        plugins: Iterable[Plugin],
        faults: Faults,
        report: Callable[[Plugin, Exception], object],
    ) -> None:
        self.all = tuple(plugins)
        self._faults, self._report = faults, report
        self.wary = set[Plugin]()
        """Plug-ins that have to know of all requests for now, as each says itself."""
        self.bodies: Container[int] = ()
        """Digests of the bodies about which plug-ins are asked, as one of them says."""

    def join(self, core: Core) -> None:
        """Let the plug-ins keep what they need of the core."""
        for plugin in self.all:
            plugin.join(core)

    def use(self, *settings: object) -> None:
        """Replace plug-ins' settings, each by one of its class."""
        self.ask("use", {type(of): of for of in settings})

    def get(self, kind: type[T]) -> T:
        """Return the plug-in of a class.

        Raises:
            LookupError: there is none.
        """
        for plugin in self.all:
            if isinstance(plugin, kind):
                return plugin
        raise LookupError(kind.name)

    def failed(self, plugin: Plugin, error: Exception) -> None:
        """Count and report a failure."""
        self._faults[plugin.name] += 1
        try:
            self._report(plugin, error)
        except Exception:  # noqa: BLE001 - the report may fail as well
            self._faults["watching"] += 1

    def admit(self, request: Request, now: float) -> tuple[Parts, list[Admitted]]:
        """Ask the plug-ins about a special request."""
        known = dict(_answers(self.all, "admit", lambda of: of.admit(request, now), self.failed))
        parts = [(of, admitted.part) for of, admitted in known.items() if admitted.part is not None]
        return Parts(parts), [*known.values()]

    def filter(self, group: Group, able: Slots, answering: Answering, now: float) -> Parts:
        """Return the parts of the plug-ins that take part in a group's requests."""
        asked = _answers(
            self.all,
            "filter",
            lambda of: of.filter(group, able, answering, now),
            self.failed,
            refuses=(),
        )
        return Parts(asked)

    def variants(self, request: Request, group: Group) -> Group:
        """Return the group with all variants of its candidates."""
        for plugin, part in group.parts.items():
            try:
                group = plugin.variants(request, part, group) or group
            except Exception as error:  # noqa: BLE001
                self.failed(plugin, error)
        return group

    def fit(self, parts: Parts, point: str, request: Request, *args: Any) -> Mask | None:
        """Return which endpoints a request, or its prefill, fits; None if all."""
        masks = _answers(parts, point, methodcaller(point, request, *args), self.failed, refuses=())
        found = [mask for _, mask in masks]
        return np.logical_and.reduce(found) if found else None

    def keep(
        self, request: Request, parts: Parts, slots: Slots, now: float
    ) -> Iterator[tuple[str, Mask]]:
        """Yield which candidates the plug-ins prefer, by their names."""
        asked = _answers(
            parts,
            "keep",
            lambda of: of.keep(request, parts[of], slots, now),
            self.failed,
            refuses=(),
        )
        return ((of.name, mask) for of, mask in asked)

    def select(self, view: View, at: int) -> Parts:
        """Return the parts for the decision on the candidate at `at`.

        Raises:
            RequestError: a plug-in refuses the request.
        """
        parts = view.parts
        ask = _answers(parts, "select", lambda of: of.select(view, parts[of], at), self.failed)
        return Parts(ask)

    def each(self, point: str, *args: Any) -> Iterator[Any]:
        """Ask all plug-ins something that concerns no single request; yield their answers."""
        ask = methodcaller(point, *args)
        return (answer for _, answer in _answers(self.all, point, ask, self.failed, refuses=()))

    def ask(self, point: str, *args: Any) -> None:
        """Tell all plug-ins something that concerns no single request."""
        _tell(self.all, point, methodcaller(point, *args), self.failed)

    def save(self) -> dict[str, object]:
        """Return what survives a restart, by plug-in."""
        ask = _answers(self.all, "save", lambda of: of.save(), self.failed, refuses=())
        return {plugin.name: saved for plugin, saved in ask}

    def restore(self, saved: Mapping[str, object]) -> None:
        """Restore what `save` returned, which anybody may have written."""
        for plugin in self.all:
            try:
                if plugin.name in saved:
                    plugin.restore(saved[plugin.name])
            except Exception as error:  # noqa: BLE001
                self.failed(plugin, error)

    def told(self, point: str, decision: Decision, *args: Any) -> None:
        """Call a point after the decision, of the plug-ins that have a part in it or are wary."""
        if self.wary or point in decision.parts.points:
            asked = tuple({**decision.parts, **dict.fromkeys(self.wary)})
            _tell(asked, point, methodcaller(point, decision, *args), self.failed)


def _answers(
    plugins: Iterable[Plugin],
    point: str,
    ask: Callable[[Plugin], A | None],
    failed: Callable[[Plugin, Exception], object],
    *,
    refuses: tuple[type[RequestError], ...] = (RequestError,),
) -> Iterator[tuple[Plugin, A]]:
    """Yield the plug-ins that answer at a point, with their answers; report those that fail.

    Raises:
        RequestError: a plug-in refuses the request, where it may.
    """
    for plugin in plugins:
        if point not in plugin.points:
            continue
        try:
            answer = ask(plugin)
        except refuses:
            raise
        except Exception as error:  # noqa: BLE001 - this is the guard
            failed(plugin, error)
            continue
        if answer is not None:
            yield plugin, answer


def _tell(
    plugins: Iterable[Plugin],
    point: str,
    call: Callable[[Plugin], object],
    failed: Callable[[Plugin, Exception], object],
) -> None:
    for _answer in _answers(plugins, point, call, failed, refuses=()):
        pass


def prescore(view: View, parts: Parts, group: Group, match: PrefixMatch | None) -> None:
    """Put the parts of the plug-ins into a view."""
    ask = _answers(
        parts,
        "prescore",
        lambda of: of.prescore(view, parts[of], group, match),
        partial(_leave_out, view),
    )
    asked = dict(ask)
    kept = ((of, asked.get(of, part)) for of, part in view.parts.items())
    view.parts = Parts(
        (of, part) for of, part in kept if of in asked or "prescore" not in of.points
    )


def price(view: View, pricing: Pricing) -> dict[str, Floats]:
    """Let the plug-ins replace `pricing.price`; return the seconds that they added, by name."""
    added, parts = dict[str, Floats](), view.parts
    asked = _answers(
        parts,
        "price",
        lambda of: of.price(view, parts[of], pricing),
        partial(_leave_out, view),
        refuses=(),
    )
    for plugin, (pricing.price, seconds) in asked:
        term = plugin.term or f"{plugin.name}_s"
        added[term] = added[term] + seconds if term in added else seconds
    return added


def score(view: View, terms: Terms) -> None:
    """Let the plug-ins change the cost."""
    parts = view.parts
    _tell(parts, "score", lambda of: of.score(view, parts[of], terms), partial(_leave_out, view))


def pick(
    view: View, standing: Standing, may: Mask | None, scores: Floats
) -> tuple[int | None, str, Parts]:
    """Return the candidate that a plug-in names, its reason and its part; mostly none."""
    ask = methodcaller("pick", view, standing, may, scores)
    asked = _answers(view.parts, "pick", ask, partial(_leave_out, view), refuses=())
    for plugin, (at, part) in asked:
        return at, plugin.name, Parts([(plugin, part)])
    return None, "", NO_PARTS


def gather(decision: Decision, point: str, *args: Any) -> Sequence[Any]:
    """Return what the plug-ins of a decision and its view add to what is sent or shown of it.

    `point` is `headers`, `members`, `answers`, `record`, `why` or `sentence`. One that fails adds
    nothing.
    """
    found, is_sent = list[Any](), point in ("headers", "members", "answers")
    shown = {} if decision.view is None or is_sent else decision.view.parts
    for plugin in {**decision.parts, **shown}:
        if point not in plugin.points:
            continue
        with suppress(Exception):  # what is shown fails no request
            told = getattr(plugin, point)(decision, *args)
            found.append(tuple(told) if isinstance(told, Iterator) else told)
    return found


def _leave_out(view: View, plugin: Plugin, error: Exception) -> None:
    view.fault("plugin", plugin, error)
    view.parts = Parts((of, part) for of, part in view.parts.items() if of is not plugin)
