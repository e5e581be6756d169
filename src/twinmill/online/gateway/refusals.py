"""Everything that is refused, in the shape that OpenAI's clients read: {"error": {message, type, param, code}}.

Refused
├── BadRequest       400  the request says something impossible; `param` names where
│   └── TooLong      400  more tokens than the context or the limit has room for
├── WrongKey         401
├── Unknown          404  no such path, model or session
├── Conflict         409  the session or group is in a state that does not allow it
├── BodyTooLarge     413
├── TooSlow          408  the body did not come in time
├── Busy             429  come again in a second
└── Unavailable      503  engine or store do not answer; nothing of the call was recorded
"""


class Refused(Exception):
    """The message says what was wrong, where, and what to do."""

    status = 400
    type = "invalid_request_error"
    code: str | None = None
    headers: dict[str, str] = {}

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param

    def body(self) -> dict[str, dict[str, str | None]]:
        return error_body(str(self), self.type, self.param, self.code)


def error_body(
    message: str, type: str, param: str | None = None, code: str | None = None
) -> dict[str, dict[str, str | None]]:
    return {"error": {"message": message, "type": type, "param": param, "code": code}}


class BadRequest(Refused):
    pass


class TooLong(BadRequest):
    code = "context_length_exceeded"


class WrongKey(Refused):
    status, code = 401, "invalid_api_key"
    headers = {"WWW-Authenticate": "Bearer"}


class Unknown(Refused):
    status, code = 404, "not_found"


class UnknownModel(Unknown):
    code = "model_not_found"


class Conflict(Refused):
    status, code = 409, "conflict"


class BodyTooLarge(Refused):
    status, code = 413, "body_too_large"


class TooSlow(Refused):
    status, code = 408, "body_too_slow"


class Busy(Refused):
    status, type, code = 429, "rate_limit_error", "rate_limit_exceeded"
    headers = {"Retry-After": "1"}


class Unavailable(Refused):
    status, type, code = 503, "server_error", "unavailable"
    headers = {"Retry-After": "1"}
