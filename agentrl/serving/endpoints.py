"""Endpoints that an engine has beside SGLang's own. They want the run's key, as those do.

    GET /process         {"process": text that each process makes when it starts}
    POST /pull_weights   {"folder": the files of a push, "copy": the engine's own}
                         200 done, 409 the copy lacks what the push builds on, 400 the files are
                         not what they should be

A call can change weights and the label that an engine has for them, and not its process: so weights
of a restart are told from weights that somebody put in under the label of one (`seals`).

`/pull_weights` brings the copy up to a push (`local_copy`). The engine answers turns meanwhile: its
model lies in memory, and is loaded by another call.
"""

import secrets
from http import HTTPStatus
from pathlib import Path
from typing import Annotated

import anyio.to_thread
from fastapi import Body, FastAPI
from fastapi.responses import JSONResponse

from agentrl.errors import AgentRLError
from agentrl.serving.local_copy import LacksBaseError, pull

__all__ = ["add_endpoints"]


def add_endpoints(app: FastAPI) -> None:
    """Give them to the server `app`."""
    own = secrets.token_hex(16)

    @app.get("/process")
    async def process() -> dict[str, str]:
        return {"process": own}

    @app.post("/pull_weights")
    async def pull_weights(
        folder: Annotated[str, Body()], copy: Annotated[str, Body()]
    ) -> JSONResponse:
        try:
            await anyio.to_thread.run_sync(pull, Path(folder), Path(copy))
        except LacksBaseError as error:
            return _answer(HTTPStatus.CONFLICT, str(error))
        except (AgentRLError, OSError) as error:
            return _answer(HTTPStatus.BAD_REQUEST, str(error))
        return _answer(HTTPStatus.OK, "done")


def _answer(status: HTTPStatus, message: str) -> JSONResponse:
    return JSONResponse({"success": status == HTTPStatus.OK, "message": message}, status)
