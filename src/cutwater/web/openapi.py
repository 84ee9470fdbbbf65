"""The OpenAPI document of `/api/v1`."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from cutwater.web.requests import KINDS

MAX_PAGE = 500
MAX_NUMBER = 2**53
ONLY = ("kept", "savepoints", "aborted")

Schema = dict[str, Any]
TEXT: Schema = {"type": "string"}
WHOLE: Schema = {"type": "integer"}
NUMBER: Schema = {"type": "number"}
YES: Schema = {"type": "boolean"}
TIME: Schema = {"type": "string", "format": "date-time"}


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def _list(schema: Schema) -> Schema:
    return {"type": "array", "items": schema}


def _by_name(schema: Schema) -> Schema:
    return {"type": "object", "additionalProperties": schema}


def _of(**fields: Schema) -> Schema:
    """An object with at least these fields."""
    return {"type": "object", "properties": fields, "required": list(fields)}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


SCHEMAS: dict[str, Schema] = {
    "Error": _of(error=TEXT),
    "GraphStage": _of(
        name=TEXT, inputs=_list(TEXT), member=TEXT, sinks=_list(_of(name=TEXT, final=YES)), runs_in=TEXT
    ),
    "StageStatus": _of(
        name=TEXT, state=TEXT, batch=WHOLE, rows_per_s=NUMBER, batch_s=NUMBER, lag_batches=WHOLE, lag_rows=WHOLE,
        watermark=_or_null(TIME), watermark_kind=TEXT, restarts=WHOLE, error=TEXT, waits_for=TEXT,
        first_batch_s=_or_null(NUMBER), sources=_list(_of(source=TEXT)), runs_in=TEXT,
        channels=_list(_of(producer=TEXT, batches=WHOLE, rows=WHOLE)), cut=_or_null(WHOLE),
        rules=_list(_of(name=TEXT, rows=WHOLE, total=WHOLE)), on_violation=TEXT,
    ),
    "Stage": _of(
        name=TEXT, inputs=_list(TEXT), member=TEXT, sinks=_list(_of(name=TEXT, final=YES)), runs_in=TEXT,
        status=_or_null(_ref("StageStatus")),
    ),
    "Member": _of(
        pipeline=TEXT, member=TEXT, host=TEXT, pid=WHOLE, state=TEXT, presence=TEXT, alive=YES, leads=YES,
        started_at=_or_null(TIME), updated_at=_or_null(TIME), generation=WHOLE, term=WHOLE, epoch=_or_null(WHOLE),
        version=TEXT, spark=TEXT, spark_ui=_or_null(TEXT), stages=_list(_ref("StageStatus")),
    ),
    "Journal": _of(
        generation=WHOLE, restored_to=_or_null(WHOLE), term=WHOLE, leader=TEXT, head=_or_null(WHOLE),
        open=_list(WHOLE), kept=_list(WHOLE), savepoints=_by_name(WHOLE), watermark=_or_null(TIME), drained=YES,
        unpublished=_list(TEXT),
    ),
    "Pipeline": _of(
        store=TEXT, running=YES, members=_list(_ref("Member")), journal=_ref("Journal"),
        graph=_list(_ref("GraphStage")), may_steer=YES,
    ),
    "Row": _of(
        epoch=WHOLE, checkpoint_id=_or_null(WHOLE), result=TEXT, kind=TEXT, savepoints=_list(TEXT),
        begun_at=_or_null(TIME), committed_at=_or_null(TIME), took_s=_or_null(NUMBER), generation=_or_null(WHOLE),
        flags=_list(TEXT), watermark=_or_null(TIME), stages=WHOLE, stages_cut=_or_null(WHOLE),
        state_files=_or_null(WHOLE), state_bytes=_or_null(WHOLE), written_bytes=_or_null(WHOLE),
        in_flight=_or_null(_of(batches=WHOLE, files=WHOLE)), published=_by_name(_or_null(WHOLE)),
        problem=_or_null(TEXT), reason=_or_null(TEXT), detail=TEXT,
    ),
    "Checkpoints": _of(
        store=TEXT, generation=WHOLE, head=_or_null(WHOLE), checkpoints=_list(_ref("Row")), total=WHOLE,
        next=_or_null(WHOLE), newest=_by_name(_or_null(WHOLE)),
        durations=_list(_of(epoch=WHOLE, took_s=_or_null(NUMBER), result=TEXT)),
        figures=_of(
            committed=WHOLE, aborted=WHOLE, aborted_by_reason=_by_name(WHOLE), kept=WHOLE, restored=WHOLE,
            took_s=_or_null(_of(min=NUMBER, median=NUMBER, p99=NUMBER, max=NUMBER)),
        ),
    ),
    "Checkpoint": _of(
        epoch=WHOLE, checkpoint_id=WHOLE, savepoints=_list(TEXT), committed_at=_or_null(TIME),
        took_s=_or_null(NUMBER), generation=WHOLE, flags=_list(TEXT), watermark=_or_null(TIME), state_files=WHOLE,
        state_bytes=_or_null(WHOLE), published=_by_name(_or_null(WHOLE)), problem=_or_null(TEXT),
    ),
    "Explained": _of(epoch=WHOLE, fate=TEXT, hints=_list(TEXT)),
    "Timeline": _of(
        store=TEXT, generation=WHOLE, head=_or_null(WHOLE), drained=YES, left_out=WHOLE,
        generations=_list(_of(generation=WHOLE, parent=_or_null(WHOLE), epoch=_or_null(WHOLE), forced=YES)),
        epochs=_list(_of(
            epoch=WHOLE, generation=WHOLE, committed_at=_or_null(TIME), flags=_list(TEXT),
            savepoints=_list(TEXT), kept=YES, abandoned=YES,
        )),
        aborted=_list(_of(epoch=WHOLE, generation=WHOLE, reason=TEXT)),
    ),
    "Tables": _of(
        store=TEXT, epoch=_or_null(WHOLE), tables=_by_name(WHOLE), sinks=_list(TEXT), next=_or_null(WHOLE),
        epochs=_list(_of(
            epoch=WHOLE, generation=WHOLE, committed_at=_or_null(TIME), savepoints=_list(TEXT), abandoned=YES,
            tables=_by_name(_or_null(_of(
                version=WHOLE, files=_or_null(WHOLE), rows=_or_null(WHOLE), bytes=_or_null(WHOLE)
            ))),
        )),
    ),
    "Members": _of(leader=TEXT, term=WHOLE, members=_list(_ref("Member"))),
    "Request": _of(
        id=TEXT, kind={"enum": list(KINDS)}, asked_at=_or_null(TIME),
        state={"enum": ["waiting", "done", "failed"]}, text=TEXT, epoch=_or_null(WHOLE),
    ),
    "Requests": _of(requests=_list(_ref("Request"))),
    "RequestBody": {
        "type": "object",
        "properties": {
            "kind": {"enum": list(KINDS), "description": "What to do."},
            "name": _or_null({"type": "string", "description": "Of the savepoint to take."}),
            "ref": _or_null({"type": "string", "description": "What to restore: an epoch, a savepoint, or latest."}),
            "full": {"type": "boolean", "description": "A checkpoint that copies all state."},
            "unaligned": {"type": "boolean", "description": "A checkpoint that does not wait for rows in channels."},
            "force": {"type": "boolean", "description": "A restore that undoes what others did to the tables."},
        },
        "required": ["kind"],
        "additionalProperties": False,
    },
}  # fmt: skip

ERRORS = {
    "400": "A parameter or the body is not valid.", "401": "The token is missing or wrong.",
    "403": "Not allowed from there, or on this server.", "404": "There is no such thing.",
    "411": "The length of the body is missing.", "413": "The body is too long.", "415": "The body is not JSON.",
    "422": "The request is invalid.", "429": "Too many requests wait.",
    "503": "The store does not answer, or too many clients are connected.",
}  # fmt: skip


def _answers(schema: str, *errors: str, status: str = "200") -> dict[str, Any]:
    found = {
        status: {"description": "The answer.", "content": {"application/json": {"schema": _ref(schema)}}}
    }
    for error in errors:
        found[error] = {
            "description": ERRORS[error], "content": {"application/json": {"schema": _ref("Error")}}
        }  # fmt: skip
    return found


def _query(name: str, most: int, what: str) -> dict[str, Any]:
    return {
        "name": name, "in": "query", "required": False, "description": what,
        "schema": {"type": "integer", "minimum": 1, "maximum": most},
    }  # fmt: skip


def _path(name: str, what: str) -> dict[str, Any]:
    return {
        "name": name,
        "in": "path",
        "required": True,
        "description": what,
        "schema": {"type": "string", "minLength": 1},
    }


def _get(
    summary: str, schema: str, *errors: str, parameters: list[dict[str, Any]] | None = None
) -> dict[str, Any]:
    answers = _answers(schema, "401", "403", "503", *errors)
    return {"get": {"summary": summary, "parameters": parameters or [], "responses": answers}}


@lru_cache(1)
def openapi() -> dict[str, Any]:
    """The whole document."""
    limit = _query("limit", MAX_PAGE, "How many at most.")
    before = _query("before", MAX_NUMBER, "Only epochs before this one.")
    ref = _path("ref", "An epoch's number, a savepoint's name, or latest.")
    only = {
        "name": "only", "in": "query", "required": False, "description": "Only these epochs.",
        "schema": {"type": "string", "enum": list(ONLY)},
    }  # fmt: skip
    post = {
        "summary": "Ask for a checkpoint, savepoint, restore, cancellation or drain. The answer comes at once; the "
        "request is carried out afterwards.",
        "security": [{"token": []}],
        "requestBody": {"required": True, "content": {"application/json": {"schema": _ref("RequestBody")}}},
        "responses": _answers(
            "Request", "400", "401", "403", "411", "413", "415", "422", "429", status="202"
        ),
    }
    paths = {
        "/pipeline": _get("The members, the graph and the journal (`cutwater status`).", "Pipeline"),
        "/stages": _get("All stages, each after those that it reads.", "Stages"),
        "/stages/{name}": _get("One stage.", "Stage", "404", parameters=[_path("name", "The stage's name.")]),
        "/checkpoints": _get(
            "The epochs, newest first (`cutwater checkpoints`).",
            "Checkpoints",
            "400",
            parameters=[limit, before, only],
        ),
        "/checkpoints/{ref}": _get(
            "One kept checkpoint (`cutwater show`).", "Checkpoint", "404", parameters=[ref]
        ),
        "/checkpoints/{ref}/explain": _get(
            "Where an epoch's time went, or why it failed (`cutwater explain`).",
            "Explained",
            "404",
            parameters=[ref],
        ),
        "/timeline": _get("The generations and their epochs.", "Timeline", "400", parameters=[limit]),
        "/tables": _get(
            "The table versions of each kept epoch (`cutwater tables`).",
            "Tables",
            "400",
            parameters=[limit, before],
        ),
        "/members": _get("The members.", "Members"),
        "/requests": {**_get("The newest requests.", "Requests"), "post": post},
        "/requests/{id}": _get(
            "The outcome of a request.", "Request", "404", parameters=[_path("id", "Its id.")]
        ),
        "/events": {
            "get": {
                "summary": "Server-sent events: `pipeline` (as /pipeline) and `journal` when they change, `request`, "
                "`store`, and `alive`.",
                "responses": {
                    "200": {
                        "description": "The stream, without an end.",
                        "content": {"text/event-stream": {}},
                    }
                },
            }
        },
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "Cutwater", "version": "1", "description": "One pipeline and its checkpoints."},
        "servers": [{"url": "/api/v1"}],
        "paths": paths,
        "components": {
            "schemas": SCHEMAS | {"Stages": _of(stages=_list(_ref("Stage")))},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }
