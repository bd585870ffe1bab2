"""Whatever a scenario file holds and whatever an option says is a scenario or a ScenarioError, and nothing else."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scenarios.spec import document
from scenarios.spec.document import ScenarioError, scenario_names
from scenarios.spec.keys import KEYS, SWEPT
from scenarios.spec.load import Override, assignment, load_scenario, resolved
from tests.test_loader import load  # noqa: F401

QUICK = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def never_anything_else(load, text):
    """Load, and hold whatever comes to being a scenario that resolves to itself, or a ScenarioError."""
    try:
        scenario = load(text)
    except ScenarioError as error:
        assert error.mistakes
        assert all(line and line.isprintable() for line in error.mistakes)
    else:
        assert load(resolved(scenario)) == scenario


@QUICK
@given(text=st.text(max_size=200) | st.binary(max_size=200))
def test_any_text_is_a_scenario_or_a_scenario_error(load, text):
    never_anything_else(load, text.encode(errors="replace") if isinstance(text, str) else text)


KEY = st.sampled_from([*KEYS, *(f"sweep.{key}" for key in SWEPT)])
SCALARS = (
    st.none().map(lambda _: "1979-05-27T07:32:00Z")
    | st.booleans()
    | st.integers(-3, 30)
    | st.integers()
    | st.floats()
    | st.text(max_size=12)
    | st.sampled_from(
        ["8 MB", "10 us", "20-200 Gbit/s", "mesh", "five-router", "uniform", "gaussian", "markov", "joint"]
    )
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
)


@QUICK
@given(values=st.dictionaries(KEY, VALUES, max_size=6))
def test_any_values_of_known_keys_are_a_scenario_or_a_scenario_error(load, values):
    never_anything_else(load, document.written(values))


@QUICK
@given(name=st.sampled_from(scenario_names()), data=st.data())
def test_any_change_to_a_scenario_is_a_scenario_or_a_scenario_error(load, name, data):
    text = document.find(name).read_bytes()
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 12)))
    new = data.draw(st.binary(max_size=6) | st.sampled_from([b"0", b"-", b'"', b"\n", b"[", b"=", b"nan", b"1e9"]))
    never_anything_else(load, text[:start] + new + text[end:])


@QUICK
@given(key=KEY | st.text(max_size=20), value=VALUES | st.integers() | st.floats())
def test_any_override_is_a_scenario_or_a_scenario_error(key, value):
    try:
        load_scenario("paper", [Override(key, value, "--option")])
    except ScenarioError as error:
        assert all("\n" not in line for line in error.mistakes)


@QUICK
@given(text=st.text(max_size=40))
def test_any_assignment_and_any_name_is_a_scenario_or_a_scenario_error(text):
    for attempt in (lambda: load_scenario("paper", [assignment(f"run.seed={text}")]), lambda: load_scenario(text)):
        try:
            attempt()
        except ScenarioError as error:
            assert all("\n" not in line for line in error.mistakes)
