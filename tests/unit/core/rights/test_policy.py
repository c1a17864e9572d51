"""Policy decisions: deny wins, no rule means no, anything malformed denies."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ANONYMOUS
from chelonia.core.rights.policy import Action, check_policy_rule, decide, opens_no_more
from tests.support.failing import fails

JOE, EVE = "/O=Grid/CN=joe", "/O=Grid/CN=eve"
VO = ("/atlas/prod/Role=none",)

IDENTITIES = st.sampled_from([JOE, EVE, "ALL", ANONYMOUS, "VOMS:atlas", "VOMS:", "<", "", "nonsense"])
WORDS = st.sampled_from(
    [sign + action.value for sign in "+-" for action in Action] + ["read", "*", "+", "-", "+readd", "<x>"]
)
POLICIES = st.dictionaries(IDENTITIES, st.lists(WORDS, max_size=4).map(" ".join), max_size=4)


def allowed(
    policy: dict[str, str], action: Action = Action.READ, *, dn: str = EVE, vo: tuple[str, ...] = (), owner: str = JOE
) -> bool:
    return decide(action, dn, vo, owner=owner, policy=policy).allowed


@pytest.mark.parametrize("action", list(Action))
def test_the_owner_has_every_action(action: Action) -> None:
    assert allowed({}, action, dn=JOE)
    assert allowed({JOE: "-" + action.value}, action, dn=JOE)  # his own rule is replaced by the grant


@pytest.mark.parametrize("action", list(Action))
def test_nothing_said_means_no(action: Action) -> None:
    assert not allowed({}, action)


@pytest.mark.parametrize("given", list(Action))
@pytest.mark.parametrize("asked", list(Action))
def test_a_right_is_that_right_alone(given: Action, asked: Action) -> None:
    assert allowed({EVE: f"+{given.value}"}, asked) == (given is asked)


@pytest.mark.parametrize(
    ("policy", "vo", "expected"),
    [
        ({"ALL": "+read"}, (), True),
        ({EVE: "+read"}, (), True),
        ({JOE: "+read"}, (), False),
        ({EVE: "+read", "ALL": "-read"}, (), False),
        ({EVE: "-read", "ALL": "+read"}, (), False),
        ({EVE: "+read -read"}, (), False),
        ({EVE: "-delete +read"}, (), True),
        ({"VOMS:atlas": "+read"}, VO, True),
        ({"VOMS:atlas": "+read"}, (), False),
        ({"VOMS:atl": "+read"}, VO, False),
        ({"VOMS:atlas": "+read"}, ("/atlas2/x",), False),
        ({"VOMS:atlas": "+read"}, ("/atlas",), True),
        ({"VOMS:atlas": "-read", EVE: "+read"}, VO, False),
        ({"VOMS:": "+read"}, VO, False),
        ({"VOMS:/": "+read"}, VO, False),
        ({"VOMS:/atlas/prod": "+read"}, VO, True),
        ({"VOMS:/atlas/pro": "+read"}, VO, False),
        ({"VOMS:/atlas/prod/Role=none": "+read"}, VO, True),
        ({"VOMS:/atlas/prod/Role=boss": "+read"}, VO, False),
        ({"VOMS:/atlas/prod/sub": "+read"}, VO, False),
        ({ANONYMOUS: "+read"}, (), False),
        ({EVE + "x": "+read"}, (), False),
        ({EVE: ""}, (), False),
        ({EVE: "  +read  "}, (), True),
        ({EVE: "+Read"}, (), False),
        ({EVE: "+readd"}, (), False),
        ({EVE: "+"}, (), False),
    ],
)
def test_table(policy: dict[str, str], vo: tuple[str, ...], expected: bool) -> None:
    assert allowed(policy, vo=vo) == expected


def test_deny_for_all_locks_out_the_owner_too() -> None:
    assert not allowed({"ALL": "-read"}, dn=JOE)
    assert allowed({"ALL": "-read"}, Action.MODIFY_POLICY, dn=JOE)  # so he can take it back


def test_anonymous_owns_nothing() -> None:
    assert not allowed({}, dn=ANONYMOUS, owner=ANONYMOUS)
    assert allowed({ANONYMOUS: "+read"}, dn=ANONYMOUS, owner=ANONYMOUS)


def test_an_entry_without_owner_belongs_to_nobody() -> None:
    assert not allowed({}, dn="", owner="")


@pytest.mark.parametrize("word", ["read", "*", "<Deny/>", "read+", "0"])
def test_a_malformed_word_denies_everything_to_those_it_concerns(word: str) -> None:
    assert not allowed({EVE: f"+read {word}"})
    assert not allowed({EVE: "+read", "ALL": word})
    assert allowed({EVE: "+read", JOE + "2": word})


@given(POLICIES, st.sampled_from(list(Action)))
def test_a_matching_deny_always_wins(policy: dict[str, str], action: Action) -> None:
    assert not allowed({**policy, EVE: f"+{action.value} -{action.value}"}, action)


@given(POLICIES, st.sampled_from(list(Action)), st.sampled_from([JOE, EVE, ANONYMOUS]))
def test_whoever_is_allowed_is_so_by_owning_or_by_a_plus(policy: dict[str, str], action: Action, dn: str) -> None:
    decision = decide(action, dn, (), owner=JOE, policy=policy)
    if decision.allowed:
        named = [policy[identity] for identity in (dn, "ALL") if identity in policy]
        assert dn == JOE or any(f"+{action.value}" in words.split() for words in named)
        assert not any(f"-{action.value}" in policy.get("ALL", "").split() for _ in [0])


@given(POLICIES, st.sampled_from(list(Action)))
def test_taking_rules_away_from_others_changes_nothing(policy: dict[str, str], action: Action) -> None:
    mine = {identity: words for identity, words in policy.items() if identity in (EVE, "ALL")}
    assert allowed(policy, action) == allowed(mine, action)


def test_the_rule_that_decided_is_told() -> None:
    denied = decide(Action.READ, EVE, (), owner=JOE, policy={"ALL": "-read", EVE: "+read"})
    assert (denied.allowed, denied.rule) == (False, "ALL: -read")
    granted = decide(Action.READ, EVE, (), owner=JOE, policy={EVE: "+read"})
    assert (granted.allowed, granted.rule) == (True, f"{EVE}: +read")
    assert decide(Action.READ, EVE, (), owner=JOE, policy={}).rule == "no rule allows it"


@pytest.mark.parametrize(
    ("identity", "actions"),
    [("ALL", "+read"), ("ANONYMOUS", "-read +delete"), (JOE, ""), ("VOMS:atlas", "+modifyPolicy +modifyStates")],
)
def test_rules_that_mean_something(identity: str, actions: str) -> None:
    check_policy_rule(identity, actions)


@pytest.mark.parametrize(
    ("identity", "actions"),
    [("", "+read"), ("joe", "+read"), ("all", "+read"), ("VOMS:", "+read"), ("VOMS:/", "+read"),
     ("<", "+read"), ("/CN=joe\n/CN=eve", "+read"), ("/CN=joe\x7f", "+read"), ("ALL", "read"),
     ("ALL", "+fly"), ("ALL", "+"), (JOE, "+read,+delete")],
)  # fmt: skip
def test_rules_that_could_not_mean_anything_are_refused(identity: str, actions: str) -> None:
    with fails(Kind.BAD_REQUEST):
        check_policy_rule(identity, actions)


@given(st.text(max_size=20), st.text(max_size=30))
def test_an_accepted_rule_never_hits_the_malformed_path(identity: str, actions: str) -> None:
    try:
        check_policy_rule(identity, actions)
    except CheloniaError:
        return
    for action in Action:
        granted = decide(action, identity, (), owner="", policy={identity: actions})
        assert granted.allowed == (
            f"+{action.value}" in actions.split() and f"-{action.value}" not in actions.split()
        ) or (identity.startswith("VOMS:"))


@given(POLICIES, POLICIES, POLICIES, st.sampled_from(list(Action)), st.sampled_from([JOE, EVE, ANONYMOUS]))
def test_a_policy_that_opens_no_more_allows_nobody_what_the_others_do_not(
    policy: dict[str, str], other: dict[str, str], third: dict[str, str], action: Action, dn: str
) -> None:
    for vo in ((), VO):
        if opens_no_more(policy, other, third) and allowed(policy, action, dn=dn, vo=vo, owner=""):
            assert any(allowed(each, action, dn=dn, vo=vo, owner="") for each in (other, third))


@pytest.mark.parametrize(
    ("policy", "other", "expected"),
    [
        ({}, {}, True),
        ({"ALL": "-read"}, {}, True),
        ({"ALL": "+read"}, {"ALL": "+read +delete"}, True),
        ({EVE: "+read"}, {"ALL": "+read"}, True),
        ({"ALL": "+read"}, {EVE: "+read"}, False),
        ({"ALL": "+read"}, {"ALL": "+delete"}, False),
        ({"ALL": "+read"}, {"ALL": "+read", EVE: "-read"}, False),
        ({"ALL": "+read", EVE: "-read"}, {"ALL": "+read", EVE: "-read"}, True),
        ({"ALL": "+read"}, {"ALL": "+read", EVE: "-delete"}, True),
        ({"ALL": "+read"}, {"ALL": "+read", EVE: "nonsense"}, False),
    ],
)
def test_what_opens_no_more(policy: dict[str, str], other: dict[str, str], *, expected: bool) -> None:
    assert opens_no_more(policy, other) is expected
