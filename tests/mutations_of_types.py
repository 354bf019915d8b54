"""Ways to be wrong about types, unions, order and keys; `make mutants` plays them."""

from tests.mutations import Mutant

GENERICS = "tests/core/test_generics.py"
ACCEPTING = "tests/core/test_accepting.py"
TIES = "tests/core/test_ties.py"
BY_EACH = "tests/core/test_by_each.py"
UNIONS = "tests/core/test_unions.py"

TYPES = [
    Mutant(
        "variables of a base are filled on the first level only",
        "type_variables.py",
        "there = {variable: fill(given, known) for variable, given in given_to(base).items()}",
        "there = given_to(base)",
        GENERICS,
    ),
    Mutant(
        "two variables of one name are taken for one",
        "type_variables.py",
        "if variable.__name__ in told and close(filled.get(variable, variable)) is Any:",
        "if variable.__name__ in told:",
        GENERICS,
    ),
    Mutant(
        "what is told of a base is not known of the class that derives from it",
        "type_variables.py",
        "    if learned:\n",
        "    if False:\n",
        GENERICS,
    ),
    Mutant(
        "a union is taken if one of its members is",
        "accepting.py",
        "return all(accepts(taken, member) for member in members(found))",
        "return any(accepts(taken, member) for member in members(found))",
        ACCEPTING,
    ),
    Mutant(
        "what stands in brackets is not compared",
        "accepting.py",
        "and _brackets_fit(taken, found)",
        "",
        ACCEPTING,
    ),
    Mutant(
        "an int is no float",
        "accepting.py",
        "(taken, *_ALSO_TAKEN.get(taken, ()))",
        "taken",
        ACCEPTING,
    ),
    Mutant(
        "of one time, records come by the names of their injectors",
        "core/turn.py",
        "self._tied = len(set(self._plan.ranks)) > 1 and has_ties(arrivals.timestamps)",
        "self._tied = False",
        TIES,
    ),
    Mutant(
        "in order of event time, records of one time come by the names of their injectors",
        "core/ordered.py",
        "return record[:6]",
        "return record[0], 0, *record[2:6]",
        TIES,
    ),
    Mutant(
        "what one computation produces to two outputs does not stay in order",
        "core/graph.py",
        "return tuple(first[self._maker(read)] for read in self.inputs)",
        "return tuple(range(len(self.inputs)))",
        "tests/conformance/test_records.py",
    ),
    Mutant(
        "a record under no key is not counted",
        "core/turn.py",
        "            tally.unkeyed += 1\n",
        "",
        BY_EACH,
    ),
    Mutant(
        "a record comes twice under a key that is named twice",
        "core/route.py",
        "keys = dict.fromkeys(found) if change.spreads else (found,)",
        "keys = list(found) if change.spreads else (found,)",
        BY_EACH,
    ),
    Mutant(
        "a record under several keys takes the value of another",
        "core/route.py",
        "places += [place] * len(found)",
        "places += range(place, place + len(found))",
        BY_EACH,
    ),
    Mutant(
        "a record under no key is taken for one that failed",
        "core/turn.py",
        "        if wrong == NO_KEY:\n",
        "        if wrong is NO_KEY and False:\n",
        BY_EACH,
    ),
    Mutant(
        "two classes of one name in a union are not noticed",
        "core/unions.py",
        "        if name in tags:\n",
        "        if False:\n",
        UNIONS,
    ),
    Mutant(
        "a union in a field is not seen",
        "fields.py",
        "return (*inner, *field_types(kind).values()) if has_fields(class_of(kind)) else inner",
        "return inner",
        UNIONS,
    ),
    Mutant(
        "a late record goes to an output of more types as it lies",
        "core/turn.py",
        "if reading.mapped or encode is not encode_value else stored",
        "if reading.mapped else stored",
        UNIONS,
    ),
    Mutant(
        "integers in a union are not looked at",
        "core/types.py",
        "for part in plain_parts(kind):",
        "for part in [kind]:",
        UNIONS,
    ),
    Mutant(
        "a class with a union in it skips its own check",
        "core/unions.py",
        '        if hasattr(made, "__post_init__"):\n',
        "        if False:\n",
        UNIONS,
    ),
    Mutant(
        "outputs that __init__ has looked at stay without their type",
        "computation.py",
        'if name == "__orig_class__":',
        "if False:",
        GENERICS,
    ),
]
