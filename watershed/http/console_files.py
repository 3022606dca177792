"""The console: static files that read the routes under /v1 from the browser. They need no other server."""

from pathlib import Path
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

FOLDER: Final = Path(__file__).parent / "console"
# Nothing from elsewhere, no code or style in the page itself, and no frame around it.
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # is asked for by its ETag
}


class _Files(StaticFiles):
    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        response = super().file_response(*args, **kwargs)
        response.headers.update(HEADERS)
        return response


def console_routes() -> list[Route | Mount]:
    """Returns the routes. Addresses in the files are relative, so that a proxy may put the server under any path."""

    def to_console(_: Request) -> Response:
        return RedirectResponse("console/")

    return [Route("/", to_console), Mount("/console", app=_Files(directory=FOLDER, html=True))]
