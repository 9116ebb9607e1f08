"""The tests of the server need its extra."""

import importlib.util

from conftest import require_tool

for name in ("fastapi", "httpx"):
    require_tool(f"{name} (for cayu.server)", importlib.util.find_spec(name))
