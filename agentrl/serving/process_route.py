"""`GET /process` of an engine: what tells its process from one that is started in its place.

    {"process": text that each process makes when it starts}

A call can change weights and the label that an engine has for them, and not this: so weights of a
restart are told from weights that somebody put in under the label of one (`seals`).
"""

import secrets

from fastapi import FastAPI

__all__ = ["add_process_route"]


def add_process_route(app: FastAPI) -> None:
    """`app` wants the run's key for it, as for its other endpoints."""
    own = secrets.token_hex(16)

    @app.get("/process")
    async def process() -> dict[str, str]:
        return {"process": own}
