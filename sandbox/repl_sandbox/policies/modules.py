"""Modules that cells may import under "restricted": each with a reason, and their proxies."""

from __future__ import annotations

import builtins
import copy as library
import importlib
import string
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from ..errors import PolicyError
from .lint import listed

# Modules that cells may import under `Policy(language="restricted")`: one row each, with a
# reason.
#
# A cell gets a proxy with the names of the row and nothing else, above all no other module. Names
# that a version of Python lacks are left out of the proxy. A module without a row cannot be
# imported: nobody has reviewed its names.


@dataclass(frozen=True, slots=True)
class ModuleRule:
    """One module: the names that it offers, and the reason that they are harmless.

    `replaced`: names with a replacement function (`STAND_INS`). `writable`: classes
    whose instances take assignments. `default`: whether `imports=None` includes the module.
    """

    module: str
    reason: str
    names: str
    replaced: str = ""
    writable: str = ""
    default: bool = True


_ABSTRACT = """
    Awaitable Callable Collection Container Generator Hashable ItemsView Iterable Iterator KeysView
    Mapping MappingView MutableMapping MutableSequence MutableSet Reversible Sequence Set Sized
    ValuesView
"""

TABLE: tuple[ModuleRule, ...] = (
    ModuleRule(
        "__future__",
        "statements for the compiler; the features themselves do nothing",
        "annotations division generator_stop",
    ),
    ModuleRule(
        "bisect",
        "searches in lists; key functions are the cell's own",
        "bisect bisect_left bisect_right insort insort_left insort_right",
    ),
    ModuleRule(
        "collections",
        "containers; namedtuple checks that each name is an exact str and an identifier before its "
        "eval. UserDict and its like are left out: they hand out their insides",
        "ChainMap Counter OrderedDict defaultdict deque namedtuple",
        writable="ChainMap deque",
    ),
    ModuleRule("collections.abc", "abstract classes, to ask what a value is", _ABSTRACT),
    ModuleRule(
        "datetime",
        "values; `sys`, which the Python version of the module has, is left out",
        "MAXYEAR MINYEAR UTC date datetime time timedelta timezone tzinfo",
    ),
    ModuleRule(
        "decimal",
        "numbers, and contexts that only numbers read",
        """
        BasicContext Clamped Context Decimal DecimalException DefaultContext DivisionByZero
        ExtendedContext FloatOperation Inexact InvalidOperation MAX_EMAX MAX_PREC MIN_EMIN
        MIN_ETINY Overflow ROUND_05UP ROUND_CEILING ROUND_DOWN ROUND_FLOOR ROUND_HALF_DOWN
        ROUND_HALF_EVEN ROUND_HALF_UP ROUND_UP Rounded Subnormal Underflow getcontext localcontext
        setcontext
        """,
        writable="Context",
    ),
    ModuleRule("fractions", "numbers", "Fraction"),
    ModuleRule(
        "functools",
        "wraps and update_wrapper are left out or replaced: the real ones copy attributes of any "
        "name. singledispatch is left out: it evaluates annotations that are text",
        "cache cached_property cmp_to_key lru_cache total_ordering",
        replaced="partial reduce wraps",
    ),
    ModuleRule(
        "heapq",
        "works on lists; key functions are the cell's own",
        "heapify heappop heappush heappushpop heapreplace merge nlargest nsmallest",
    ),
    ModuleRule(
        "itertools",
        "iterators over what the cell has",
        """
        accumulate batched chain combinations combinations_with_replacement compress count cycle
        dropwhile filterfalse groupby islice pairwise permutations product repeat starmap takewhile
        tee zip_longest
        """,
    ),
    ModuleRule(
        "json",
        "text to values and back. `codecs`, `decoder`, `encoder` and `scanner` lead to the "
        "builtins; load and dump are for files, which there are none of",
        "JSONDecodeError JSONEncoder dumps loads",
    ),
    ModuleRule(
        "math",
        "functions of numbers",
        """
        acos acosh asin asinh atan atan2 atanh cbrt ceil comb copysign cos cosh degrees dist e erf
        erfc exp exp2 expm1 fabs factorial floor fma fmod frexp fsum gamma gcd hypot inf isclose
        isfinite isinf isnan isqrt lcm ldexp lgamma log log10 log1p log2 modf nan nextafter perm pi
        pow prod radians remainder sin sinh sqrt sumprod tan tanh tau trunc ulp
        """,
    ),
    ModuleRule(
        "operator",
        "attrgetter and methodcaller read attributes of any name; setitem, delitem and the "
        "in-place functions write past the guard: left out",
        """
        abs add and_ concat contains countOf eq floordiv ge getitem gt index indexOf inv invert
        is_ is_not itemgetter le length_hint lshift lt matmul mod mul ne neg not_ or_ pos pow
        rshift sub truediv truth xor
        """,
    ),
    ModuleRule(
        "random",
        "numbers from the session's own generator; SystemRandom and `_os` are left out",
        """
        Random betavariate binomialvariate choice choices expovariate gammavariate gauss getrandbits
        lognormvariate normalvariate paretovariate randbytes randint random randrange sample seed
        shuffle triangular uniform vonmisesvariate weibullvariate
        """,
    ),
    ModuleRule(
        "re",
        "patterns over text; the modules it shows (`enum`, `functools`, `copyreg`) are left out, "
        "and RegexFlag, whose metaclass makes classes",
        """
        A ASCII DOTALL I IGNORECASE L LOCALE M MULTILINE Match NOFLAG Pattern PatternError
        S U UNICODE VERBOSE X compile error escape findall finditer fullmatch match search split
        sub subn
        """,
    ),
    ModuleRule(
        "statistics",
        "functions of numbers; `sys`, `math` and the other modules that it shows are left out",
        """
        NormalDist StatisticsError correlation covariance fmean geometric_mean harmonic_mean kde
        kde_random linear_regression mean median median_grouped median_high median_low mode
        multimode pstdev pvariance quantiles stdev variance
        """,
    ),
    ModuleRule(
        "string",
        "constants and templates; Formatter reads attributes of any name, and is left out",
        """
        Template ascii_letters ascii_lowercase ascii_uppercase capwords digits hexdigits octdigits
        printable punctuation whitespace
        """,
    ),
    ModuleRule("textwrap", "text to text", "dedent fill indent shorten wrap"),
    ModuleRule(
        "typing",
        "names for annotations. get_type_hints and the classes that read annotations evaluate "
        "text, TypeVar hands out what does so, and get_origin hands out `type`: left out",
        """
        Any Callable ClassVar Collection Dict Final FrozenSet Generator Hashable Iterable Iterator
        List Literal Mapping MutableMapping NoReturn Optional Sequence Set Tuple TypeAlias Union
        cast
        """,
    ),
    # ── only if `imports` names them ─────────────────────────────────────────────────────────────
    ModuleRule(
        "base64",
        "bytes to bytes; the functions for files and the command line are left out",
        """
        a85decode a85encode b16decode b16encode b32decode b32encode b64decode b64encode b85decode
        b85encode standard_b64decode standard_b64encode urlsafe_b64decode urlsafe_b64encode
        """,
        default=False,
    ),
    ModuleRule(
        "cmath",
        "functions of numbers",
        """
        acos acosh asin asinh atan atanh cos cosh e exp inf infj isclose isfinite isinf isnan log
        log10 nan nanj phase pi polar rect sin sinh sqrt tan tanh tau
        """,
        default=False,
    ),
    ModuleRule(
        "copy",
        "copies; cells cannot define the methods by which a class says how it is copied. The memo "
        "of deepcopy, which fills with the insides of what is copied, is left out",
        "",
        replaced="copy deepcopy",
        default=False,
    ),
    ModuleRule(
        "csv",
        "rows from and to what the cell gives; there are no files",
        """
        DictReader DictWriter Error QUOTE_ALL QUOTE_MINIMAL QUOTE_NONE QUOTE_NONNUMERIC reader
        writer
        """,
        default=False,
    ),
    ModuleRule(
        "difflib",
        "comparison of texts; the classes, which show their insides, are left out",
        "context_diff get_close_matches ndiff unified_diff",
        default=False,
    ),
    ModuleRule(
        "hashlib",
        "sums of bytes; file_digest is left out",
        """
        blake2b blake2s md5 pbkdf2_hmac sha1 sha224 sha256 sha384 sha3_256 sha3_512 sha512
        """,
        default=False,
    ),
    ModuleRule(
        "time",
        "clocks and waiting, within the session's own time limit",
        """
        gmtime localtime mktime monotonic perf_counter process_time sleep strftime strptime time
        """,
        default=False,
    ),
    ModuleRule(
        "unicodedata",
        "facts about characters",
        "bidirectional category combining decimal digit lookup name normalize numeric",
        default=False,
    ),
)

ROWS: dict[str, ModuleRule] = {row.module: row for row in TABLE}

_OS = "it reaches files and processes"
_INSIDES = "it reads or makes the insides of Python: code, frames, modules"
_LARGE = (
    "its arrays and modules lead to files, ctypes and every loaded module, past any proxy; "
    "use language='lint' with it"
)

# Modules that people ask for, with the reason that no proxy makes them safe.
NEVER: dict[str, str] = {
    **dict.fromkeys("os posix shutil pathlib tempfile glob io subprocess fcntl mmap".split(), _OS),
    **dict.fromkeys("pty resource signal socket ssl select selectors".split(), _OS),
    **dict.fromkeys("http urllib requests sqlite3 zipfile tarfile logging".split(), _OS),
    **dict.fromkeys("sys builtins importlib imp runpy pkgutil inspect gc".split(), _INSIDES),
    **dict.fromkeys("types ast code codeop dis marshal symtable traceback".split(), _INSIDES),
    **dict.fromkeys("codecs warnings weakref atexit site linecache tracemalloc".split(), _INSIDES),
    **dict.fromkeys("numpy pandas scipy sklearn torch matplotlib".split(), _LARGE),
    "ctypes": "it reads and writes any memory of the process",
    "cffi": "it reads and writes any memory of the process",
    "pickle": "what it loads may call anything",
    "shelve": "what it loads may call anything",
    "dill": "what it loads may call anything",
    "dataclasses": "it evaluates annotations that are text",
    "enum": "its classes need a metaclass",
    "threading": "threads and their frames are not guarded",
    "multiprocessing": "it starts interpreters without the policy",
    "concurrent": "it starts threads and interpreters without the policy",
    "asyncio": "coroutines are refused, and its loops reach sockets and processes",
    "RestrictedPython": "it is what guards the session",
    "repl_sandbox": "it is what guards the session",
}


def offered(imports: Iterable[str] | None) -> frozenset[str]:
    """Return the modules with a row that `imports` allows; a name allows the rows below it."""
    if imports is None:
        return frozenset(row.module for row in TABLE if row.default)
    requested = tuple(imports)
    return frozenset(
        module
        for module in ROWS
        if module == "__future__" or any(f"{module}.".startswith(f"{name}.") for name in requested)
    )


def check(imports: Iterable[str] | None) -> None:
    """Raise ValueError naming `imports` and the reason, if "restricted" cannot offer a module."""
    for name in imports or ():
        if name in ROWS:
            continue
        known = NEVER.get(name.partition(".")[0])
        reason = known or "what it offers has not been read"
        raise ValueError(
            f"imports: {name!r} cannot be had under language='restricted': {reason}. "
            f"Modules that can: {', '.join(sorted(ROWS))}"
        )


# Replacements for library functions that read attributes of any name.
#
# They cover the common uses of the originals. A cell gets them under the originals' names.

_MISSING = object()


def partial(function: Callable[..., Any], /, *args: Any, **keywords: Any) -> Callable[..., Any]:
    """Return a function that calls `function` with these arguments before its own."""

    def call(*more: Any, **others: Any) -> Any:
        return function(*args, *more, **{**keywords, **others})

    return call


def reduce(function: Callable[[Any, Any], Any], values: Iterable[Any], *start: Any) -> Any:
    """Return `values` folded from the left by `function`, beginning with `start` if it is given."""
    if len(start) > 1:
        raise TypeError(f"reduce expected at most 3 arguments, got {len(start) + 2}")
    iterator = iter(values)
    result = start[0] if start else next(iterator, _MISSING)
    if result is _MISSING:
        raise TypeError("reduce() of empty iterable with no initial value")
    for value in iterator:
        result = function(result, value)
    return result


def wraps(wrapped: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that gives a function the name and docstring of `wrapped`."""

    def decorate(wrapper: Callable[..., Any]) -> Callable[..., Any]:
        for name in ("__name__", "__qualname__", "__doc__"):
            text = getattr(wrapped, name, None)
            if type(text) is str and callable(wrapper):
                setattr(wrapper, name, text)
        return wrapper

    return decorate


def copy(value: Any) -> Any:
    """Return a shallow copy of `value`."""
    return library.copy(value)


def deepcopy(value: Any) -> Any:
    """Return a deep copy of `value`, without the memo, which would expose internals."""
    return library.deepcopy(value)


# By module and name, as in the `replaced` fields of `ModuleRule`.
STAND_INS: dict[str, dict[str, object]] = {
    "copy": {"copy": copy, "deepcopy": deepcopy},
    "functools": {"partial": partial, "reduce": reduce, "wraps": wraps},
}


class GuardedFormatter(string.Formatter):
    """`str.format` whose fields the guards read."""

    def __init__(
        self, attribute: Callable[[object, str], object], item: Callable[[Any, Any], object]
    ) -> None:
        self._attribute = attribute
        self._item = item

    def get_field(
        self, field_name: str, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[Any, Any]:
        """Return the value of a field such as `0.name[key]`, and its first part."""
        first, rest = string._string.formatter_field_name_split(field_name)  # type: ignore[attr-defined]
        value = self.get_value(first, args, kwargs)
        for is_attribute, key in rest:
            value = self._attribute(value, key) if is_attribute else self._item(value, key)
        return value, first


# Modules as guarded cells see them under "restricted": only the names of the module's row.

_import = builtins.__import__


class ModuleProxy(ModuleType):
    """Holds the names of a module that a cell may use, without a reference to the module."""

    def __repr__(self) -> str:
        return f"<module {self.__name__!r}, as this session's policy offers it>"


# Previews and errors show the name of a value's type.
ModuleProxy.__name__ = ModuleProxy.__qualname__ = "module"


class ModuleProxies:
    """Proxies of the allowed modules, made once in the template."""

    def __init__(self, modules: Collection[str]) -> None:
        self._allowed = frozenset(modules)
        self._proxies: dict[str, ModuleProxy] = {}
        self.writable: tuple[type, ...] = ()
        for name in sorted(modules):  # a package before its submodules
            self._add(name)

    def import_module(
        self,
        name: str,
        globals: Mapping[str, object] | None = None,
        locals: Mapping[str, object] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> object:
        """`__import__` of cells, with the arguments of the builtin.

        Raises:
            PolicyError: the module, or a name to be imported from it, is not offered.
        """
        if type(fromlist) is list:
            # Statements pass a tuple or None. C functions that import what they need, such as
            # datetime.strptime, pass a list, and do not give the module to the cell.
            return _import(name, globals, locals, fromlist, level)
        if level or name not in self._allowed:
            raise PolicyError(
                f"import of {'.' * level + name!r} is not allowed; "
                f"imports allowed: {listed(self._allowed)}"
            )
        if not fromlist:
            return self._proxies[name.partition(".")[0]]
        # Otherwise the interpreter would look in sys.modules for names that the proxy lacks.
        for imported in fromlist:
            if reason := self.missing(name, imported):
                raise PolicyError(reason)
        return self._proxies[name]

    def missing(self, module: str, name: str) -> str:
        """Return why the proxy of an allowed `module` has no `name`, or "" if it has."""
        if name in (offered := self._names(self._proxies[module])):
            return ""
        return f"{module}.{name} is not offered; {module} offers {listed(offered)}"

    def knows(self, module: str) -> bool:
        """Return whether `module` is allowed."""
        return module in self._allowed

    def _names(self, proxy: ModuleProxy) -> list[str]:
        return [name for name in vars(proxy) if name[:1] != "_"]

    def _add(self, name: str) -> None:
        row = ROWS[name]
        package, _, last = name.rpartition(".")
        proxy = self._proxy(name)
        vars(proxy).update(_offer(row))
        if package:
            setattr(self._proxy(package), last, proxy)
        module = importlib.import_module(name)
        self.writable += tuple(getattr(module, each) for each in row.writable.split())

    def _proxy(self, name: str) -> ModuleProxy:
        if name not in self._proxies:
            self._proxies[name] = ModuleProxy(name)
        return self._proxies[name]


def _offer(row: ModuleRule) -> dict[str, Any]:
    """Return the values of a row's names that this version of Python has."""
    module = importlib.import_module(row.module)
    found = {name: getattr(module, name) for name in row.names.split() if hasattr(module, name)}
    replaced = STAND_INS.get(row.module, {})
    return {**found, **{name: replaced[name] for name in row.replaced.split()}}
