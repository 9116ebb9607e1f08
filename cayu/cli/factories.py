"""Factories named on the command line: found, called and checked; what somebody's code raises is told by its place.

The text of such an exception is never shown, since it may hold anything; `CAYU_TRACEBACK=1` shows the whole traceback.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cayu.errors import CayuError, InvalidInput
from cayu.runtime.app import CayuApp
from cayu.sessions.streams import SessionStore

SHAPE = "build_app(*, session_store=None)"
"""The least that a factory looks like."""
TRACEBACK = "CAYU_TRACEBACK"
"""The environment variable that, set to 1, asks for tracebacks."""
STORE = "session_store"
VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def load_factory(target: str) -> Callable[..., Any]:
    """Return the function that `module:name` names. Raises `InvalidInput`, also for what the module raises.

    The current directory is looked at first.
    """
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    name, _, attribute = target.partition(":")
    try:
        module = importlib.import_module(name)
    except CayuError:
        raise
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and error.name and f"{name}.".startswith(f"{error.name}."):
            told = f"There is no module {error.name!r}, looked for from {here!r} on"
            raise InvalidInput(f"{told}; go to its directory, or install it.") from None
        raise _fault("module", name, error, name) from error
    factory = getattr(module, attribute, None)
    if factory is None:
        raise InvalidInput(f"Module {name!r} has no {attribute!r}; name the function that builds the application.")
    if not callable(factory):
        raise InvalidInput(f"{target!r} is no function; name one like {SHAPE}.")
    made: Callable[..., Any] = factory
    return made


async def build(factory: Callable[..., Any], target: str, store: SessionStore | None) -> CayuApp:
    """Return the application that a factory builds, over `store` or over its own.

    Raises `InvalidInput` for a factory that cannot be called so, that raises, or that returns something else.
    """
    options = {} if store is None else {STORE: store}
    _refuse_signature(factory, target, options)
    try:
        made = factory(**options)
        app = await made if inspect.isawaitable(made) else made
    except CayuError:
        raise
    except (Exception, SystemExit) as error:
        inner = getattr(factory, "__module__", None) or ""
        raise _fault("factory", target, error, target.partition(":")[0], inner) from error
    if not isinstance(app, CayuApp):
        raise InvalidInput(f"The factory returned {type(app).__name__}; it returns a CayuApp.")
    if store is not None and app.session_store is not store:
        await app.aclose()
        raise InvalidInput("The factory's application is not on the session_store that it was given; pass it on.")
    return app


def _refuse_signature(factory: Callable[..., Any], target: str, options: dict[str, Any]) -> None:
    try:
        signature = inspect.signature(factory)
    except (TypeError, ValueError):
        raise InvalidInput(f"{target!r} has no signature that can be read; name one like {SHAPE}.") from None
    needed = [
        repr(each.name)
        for each in signature.parameters.values()
        if each.default is each.empty and each.kind not in VARIADIC and each.name not in options
    ]
    if needed:
        raise InvalidInput(
            f"The signature of {target!r} needs {', '.join(needed)}, which no command gives; give it a default, or "
            f"name a function of the shape {SHAPE}."
        )
    try:
        signature.bind(**options)
    except TypeError:
        raise InvalidInput(
            f"{target!r} cannot be called with {', '.join(options)}; write {SHAPE}, or leave --store out."
        ) from None


def _fault(kind: str, name: str, error: BaseException, *modules: str) -> InvalidInput:
    """Return the refusal that says where somebody's code has raised what."""
    if os.environ.get(TRACEBACK) == "1":
        traceback.print_exception(error, file=sys.stderr)
    at = _place(error, modules)
    missing = f" (there is no module {error.name!r})" if isinstance(error, ModuleNotFoundError) and error.name else ""
    where = "" if at is None else f" at {at}"
    return InvalidInput(
        f"{kind} {name!r} raised {type(error).__name__}{where}{missing}; set {TRACEBACK}=1 for the whole traceback",
        raised=type(error).__name__,
        at=at,
    )


def _place(error: BaseException, modules: tuple[str, ...]) -> str | None:
    """Return file and line of the innermost frame in one of the modules, or in a package that holds one."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{Path(error.filename).name}:{error.lineno}"
    found = None
    for frame, line in traceback.walk_tb(error.__traceback__):
        name = str(frame.f_globals.get("__name__"))
        if any(f"{each}.".startswith(f"{name}.") for each in modules):
            found = f"{Path(frame.f_code.co_filename).name}:{line}"
    return found
