"""The change engine against a plain model: after any sequence the same state, and never half a transact."""

from hypothesis import given, settings
from hypothesis import strategies as st

from chelonia.ahash import engine, reads
from chelonia.ahash.engine import Overlay
from chelonia.ahash.store import layout
from chelonia.core.errors import CheloniaError
from chelonia.core.ids import ObjectId
from chelonia.core.metadata import WIDE_SECTIONS
from chelonia.core.ports.ahash import ChangeType, Condition, ConditionType, Element
from tests.support.memory_store import MemoryStore

IDS = ("a", "b", "a\x01")
SECTIONS = ("s", "t", "entries", "file")
PROPERTIES = ("p", "q", "p/", "é")
VALUES = ("", "1", "-2", "x")

Model = dict[str, tuple[int, dict[str, dict[str, str]]]]

CONDITIONS = st.one_of(
    st.builds(
        Condition,
        st.sampled_from([ConditionType.IS, ConditionType.ISNOT, ConditionType.ISSET, ConditionType.UNSET]),
        st.sampled_from(SECTIONS),
        st.sampled_from(PROPERTIES),
        st.sampled_from(VALUES),
    ),
    st.builds(Condition, st.just(ConditionType.EMPTY), st.sampled_from(SECTIONS)),
    st.builds(Condition, st.just(ConditionType.VERSION), value=st.sampled_from(["0", "1", "2", "3"])),
    st.builds(
        Condition,
        st.just(ConditionType.AT_MOST),
        st.sampled_from(SECTIONS),
        st.sampled_from(PROPERTIES),
        st.sampled_from(["-3", "0", "1"]),
    ),
)
ELEMENTS = st.builds(
    Element,
    st.sampled_from(IDS).map(ObjectId),
    st.sampled_from(ChangeType),
    st.sampled_from(SECTIONS),
    st.sampled_from(PROPERTIES),
    st.sampled_from(["1", "-2"]),
    st.lists(CONDITIONS, max_size=1).map(tuple),
)
TRANSACTS = st.lists(st.lists(ELEMENTS, min_size=1, max_size=6), max_size=12)


def holds(model: Model, element: Element, condition: Condition) -> bool:
    version, sections = model.get(element.object, (0, {}))
    value = sections.get(condition.section, {}).get(condition.property)
    return {
        ConditionType.IS: value == condition.value,
        ConditionType.ISNOT: value != condition.value,
        ConditionType.ISSET: value is not None,
        ConditionType.UNSET: value is None,
        ConditionType.EMPTY: condition.section not in sections,
        ConditionType.VERSION: str(version) == condition.value,
        ConditionType.AT_MOST: condition.type is ConditionType.AT_MOST and int(value or "0") <= int(condition.value),
    }[condition.type]


def apply(model: Model, elements: list[Element]) -> Model:
    """The state after a transact that applies, by the contract."""
    after = {key: {s: dict(p) for s, p in sections.items()} for key, (_, sections) in model.items()}
    bumped: set[str] = set()
    for e in elements:
        sections = after.setdefault(e.object, {})
        properties = sections.setdefault(e.section, {})
        before = properties.get(e.property)
        match e.change:
            case ChangeType.SET:
                properties[e.property] = e.value
            case ChangeType.ADD:
                properties[e.property] = str(int(before or "0") + int(e.value))
            case ChangeType.UNSET:
                properties.pop(e.property, None)
            case ChangeType.DELETE:
                if any(sections.values()):
                    bumped.add(e.object)
                sections.clear()
            case ChangeType.CHECK:
                pass
        wide = e.section in WIDE_SECTIONS
        if not wide and (
            e.change in (ChangeType.SET, ChangeType.ADD) or (e.change is ChangeType.UNSET and before is not None)
        ):
            bumped.add(e.object)
    result: Model = {}
    for key, sections in after.items():
        left = {s: p for s, p in sections.items() if p}
        if left:
            version = model.get(key, (0, {}))[0]
            result[key] = (version + 1 if key in bumped or not version else version, left)
    return result


def state(reader: Overlay | MemoryStore) -> Model:
    found = {}
    for object_id in IDS:
        stored = reads.read_object(reader, ObjectId(object_id), ())
        if stored.version:
            found[object_id] = (stored.version, {s: dict(p) for s, p in stored.sections.items()})
    return found


@settings(max_examples=300, deadline=None)
@given(transacts=TRANSACTS, flush_every=st.integers(1, 4))
def test_transacts_do_what_the_contract_says(transacts: list[list[Element]], flush_every: int) -> None:
    store = MemoryStore()
    overlay, objects = Overlay(store), 0
    model: Model = {}
    for number, elements in enumerate(transacts):
        unmet = not all(holds(model, e, c) for e in elements for c in e.conditions)
        try:
            refused = engine.transact(overlay, tuple(elements)) is not None
        except CheloniaError as error:  # an `add` to what is no integer
            raise AssertionError("the values used here are integers") from error
        assert refused == unmet
        if not unmet:
            model = apply(model, elements)
        assert state(overlay) == model
        if number % flush_every == 0:
            puts = {key: value for key, value in overlay.pending.items() if value is not None}
            store.commit(puts, [key for key, value in overlay.pending.items() if value is None])
            objects += overlay.objects
            overlay = Overlay(store)
            assert state(store) == model
    assert objects + overlay.objects == len(model)


@given(
    below=st.dictionaries(st.binary(max_size=2), st.just(b"below")),
    above=st.dictionaries(st.binary(max_size=2), st.one_of(st.none(), st.just(b"above"))),
    span=st.tuples(st.binary(max_size=2), st.binary(max_size=2)),
    limit=st.integers(1, 4),
)
def test_an_overlay_reads_as_if_its_writes_were_done(
    below: dict[bytes, bytes], above: dict[bytes, bytes | None], span: tuple[bytes, bytes], limit: int
) -> None:
    overlay = Overlay(MemoryStore(below))
    for key, value in above.items():
        overlay.put(key, value)
    merged = {key: value for key, value in {**below, **above}.items() if value is not None}
    assert overlay.scan(*span, limit) == [i for i in sorted(merged.items()) if span[0] <= i[0] < span[1]][:limit]
    assert all(overlay.get(key) == merged.get(key) for key in {**below, **above})


def test_no_wide_record_outlives_its_header() -> None:
    store = MemoryStore()
    overlay = Overlay(store)
    object_id = ObjectId("o")
    engine.transact(overlay, (Element(object_id, ChangeType.SET, "entries", "n", "g"),))
    engine.transact(overlay, (Element(object_id, ChangeType.DELETE),))
    assert overlay.scan(*layout.wide_range(object_id), 5) == []
    assert overlay.objects == 0
