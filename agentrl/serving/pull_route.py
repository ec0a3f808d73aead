"""`POST /pull_weights` of an engine: bring the copy of its weights up to a push (`local_copy`).

    {"folder": the files of a push, "copy": the engine's own}
    200 done, 409 the copy lacks what the push builds on, 400 the files are not what they should be

The engine answers turns meanwhile: its model lies in memory, and is loaded by another call.
"""

from http import HTTPStatus
from pathlib import Path
from typing import Annotated

import anyio.to_thread
from fastapi import Body, FastAPI
from fastapi.responses import JSONResponse

from agentrl.errors import AgentRLError
from agentrl.serving.local_copy import LacksBaseError, pull

__all__ = ["add_pull_route"]


def add_pull_route(app: FastAPI) -> None:
    """`app` wants the run's key for it, as for its other endpoints."""

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
