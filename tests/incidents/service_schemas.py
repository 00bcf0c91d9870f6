"""What each service documents about the requests it takes, written by hand from its reference as JSON schemas."""

from __future__ import annotations

from typing import Any


def text(longest: int, shortest: int = 1) -> dict[str, Any]:
    return {"type": "string", "minLength": shortest, "maxLength": longest}


def thing(required: dict[str, Any], optional: dict[str, Any] | None = None) -> dict[str, Any]:
    return {
        "type": "object", "required": list(required), "properties": required | (optional or {}),
        "additionalProperties": False,
    }  # fmt: skip


def some(items: dict[str, Any], most: int, least: int = 1) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": least, "maxItems": most}


URL = {"type": "string", "pattern": "^https?://", "maxLength": 3000}
TIME = {"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$"}

# Block Kit: https://docs.slack.dev/reference/block-kit/blocks
_PLAIN = thing({"type": {"const": "plain_text"}, "text": text(150)}, {"emoji": {"type": "boolean"}})
_MRKDWN = thing({"type": {"const": "mrkdwn"}, "text": text(3000)})
_SLACK_BLOCK = {
    "oneOf": [
        thing({"type": {"const": "header"}, "text": _PLAIN}),
        thing({"type": {"const": "section"}, "text": _MRKDWN}),
        thing(
            {
                "type": {"const": "actions"},
                "elements": some(
                    {
                        "oneOf": [
                            thing({"type": {"const": "button"}, "text": _PLAIN, "url": URL}),
                            thing(
                                {
                                    "type": {"const": "button"},
                                    "text": _PLAIN,
                                    "action_id": text(255),
                                    "value": text(2000),
                                }
                            ),
                        ]
                    },
                    25,
                ),
            }
        ),
    ]
}
SLACK_WEBHOOK = thing({"text": text(40_000), "blocks": some(_SLACK_BLOCK, 50)})
SLACK_POST = thing(
    {"channel": text(40), "text": text(40_000)},
    {
        "blocks": some(_SLACK_BLOCK, 50), "thread_ts": text(40), "reply_broadcast": {"type": "boolean"},
        "unfurl_links": {"type": "boolean"},
    },
)  # fmt: skip
SLACK_UPDATE = thing({"channel": text(40), "ts": text(40), "text": text(40_000)}, {"blocks": some(_SLACK_BLOCK, 50)})
SLACK_COMPLETE = thing(
    {"files": some(thing({"id": text(40), "title": text(100)}), 10), "channel_id": text(40), "thread_ts": text(40)}
)

# Custom bot: https://open.feishu.cn/document/client-docs/bot-v3/add-custom-bot
_LARK_PLAIN = thing({"tag": {"const": "plain_text"}, "content": text(500)})
_LARK_HEADER = thing({"title": _LARK_PLAIN, "template": {"enum": ["red", "orange", "yellow", "blue", "green", "grey"]}})
_LARK_LINK = thing({"tag": {"const": "button"}, "text": _LARK_PLAIN, "type": {"const": "primary"}, "url": URL})
# Its value comes back in `event.action.value` of the callback card.action.trigger.
_LARK_PRESS = thing(
    {
        "tag": {"const": "button"}, "text": _LARK_PLAIN, "type": {"enum": ["default", "primary", "danger"]},
        "value": thing({"flightwatch": text(64)}),
    }
)  # fmt: skip


def _lark_card(config: dict[str, Any], buttons: list[dict[str, Any]]) -> dict[str, Any]:
    words = thing({"tag": {"const": "div"}, "text": thing({"tag": {"const": "lark_md"}, "content": text(10_000)})})
    row = thing({"tag": {"const": "action"}, "actions": some({"oneOf": buttons}, 5)})
    element = {"oneOf": [words, thing({"tag": {"const": "hr"}}), row]}
    return thing({"config": config, "header": _LARK_HEADER, "elements": some(element, 50)})


FEISHU = thing(
    {
        "msg_type": {"const": "interactive"},
        "card": _lark_card(thing({"wide_screen_mode": {"type": "boolean"}}), [_LARK_LINK]),
    },
    {
        "timestamp": {"type": "string", "pattern": r"^\d{10}$"},
        "sign": {"type": "string", "pattern": "^[A-Za-z0-9+/]{43}=$"},
    },
)

# An app's bot: https://open.feishu.cn/document/server-docs/im-v1/message/create and .../message-card/patch
FEISHU_APP_CARD = _lark_card(
    thing({"wide_screen_mode": {"type": "boolean"}, "update_multi": {"const": True}}), [_LARK_LINK, _LARK_PRESS]
)
FEISHU_APP_NOTE = thing(
    {"header": _LARK_HEADER, "elements": some(thing({"tag": {"const": "div"}, "text": _LARK_PLAIN}), 1)}
)
FEISHU_APP_SEND = thing(
    {"receive_id": text(64), "msg_type": {"const": "interactive"}, "content": text(30_000), "uuid": text(50)}
)
FEISHU_APP_REPLY = thing({"msg_type": {"const": "interactive"}, "content": text(30_000), "uuid": text(50)})
FEISHU_APP_PATCH = thing({"content": text(30_000)})

# Custom robot: https://open.dingtalk.com/document/orgapp/custom-robots-send-group-messages
DINGTALK = thing(
    {
        "msgtype": {"const": "markdown"},
        "markdown": thing({"title": text(100), "text": text(20_000)}),
        "at": thing({"isAtAll": {"type": "boolean"}}),
    }
)

# Group robot: https://developer.work.weixin.qq.com/document/path/91770
WECOM = {
    "oneOf": [
        thing({"msgtype": {"const": "markdown"}, "markdown": thing({"content": text(4096)})}),
        thing(
            {
                "msgtype": {"const": "image"},
                "image": thing({"base64": text(2_800_000), "md5": {"type": "string", "pattern": "^[0-9a-f]{32}$"}}),
            }
        ),
    ]
}

# Adaptive cards 1.4 in a Workflow: https://adaptivecards.io/explorer
_TEXT_BLOCK = thing(
    {"type": {"const": "TextBlock"}, "text": text(2000), "wrap": {"const": True}},
    {
        "weight": {"enum": ["Lighter", "Default", "Bolder"]},
        "size": {"enum": ["Small", "Default", "Medium", "Large"]},
        "spacing": {"enum": ["None", "Small", "Default"]},
    },
)
_STYLES = ["default", "emphasis", "good", "attention", "warning", "accent"]
TEAMS = thing(
    {
        "type": {"const": "message"},
        "attachments": some(
            thing(
                {
                    "contentType": {"const": "application/vnd.microsoft.card.adaptive"},
                    "contentUrl": {"type": "null"},
                    "content": thing(
                        {
                            "$schema": {"const": "http://adaptivecards.io/schemas/adaptive-card.json"},
                            "type": {"const": "AdaptiveCard"},
                            "version": {"enum": ["1.2", "1.3", "1.4", "1.5"]},
                            "body": some(
                                {
                                    "oneOf": [
                                        _TEXT_BLOCK,
                                        thing(
                                            {"type": {"const": "Container"}, "items": some(_TEXT_BLOCK, 20)},
                                            {"style": {"enum": _STYLES}, "bleed": {"type": "boolean"}},
                                        ),
                                        thing(
                                            {
                                                "type": {"const": "FactSet"},
                                                "facts": some(thing({"title": text(60), "value": text(1000)}), 50),
                                            }
                                        ),
                                    ]
                                },
                                100,
                            ),
                        },
                        {
                            "actions": some(
                                thing({"type": {"const": "Action.OpenUrl"}, "title": text(100), "url": URL}), 6
                            ),
                            "msteams": thing({"width": {"const": "Full"}}),
                        },
                    ),
                }
            ),
            1,
        ),
    }
)

# https://discord.com/developers/docs/resources/webhook#execute-webhook
DISCORD = thing(
    {
        "embeds": some(
            thing(
                {"title": text(256), "description": text(4096)},
                {
                    "url": URL,
                    "color": {"type": "integer", "minimum": 0, "maximum": 0xFFFFFF},
                    "timestamp": TIME,
                    "fields": some(
                        thing({"name": text(256), "value": text(1024)}, {"inline": {"type": "boolean"}}), 25, 0
                    ),
                    "image": thing({"url": {"type": "string", "pattern": "^attachment://"}}),
                },
            ),
            10,
        ),
        "allowed_mentions": thing({"parse": some({"enum": ["roles", "users", "everyone"]}, 3, 0)}),
    },
    {"content": text(2000, 0)},
)

# A bot: https://discord.com/developers/docs/resources/message#create-message and .../components/reference#button
_DISCORD_BUTTON = {
    "oneOf": [
        thing({"type": {"const": 2}, "style": {"const": 5}, "label": text(80), "url": URL | {"maxLength": 512}}),
        thing({"type": {"const": 2}, "style": {"enum": [1, 2, 3, 4]}, "label": text(80), "custom_id": text(100)}),
    ]
}
_DISCORD_ROWS = some(thing({"type": {"const": 1}, "components": some(_DISCORD_BUTTON, 5)}), 5, 0)
DISCORD_BOT_EDIT = {
    **DISCORD, "properties": DISCORD["properties"] | {"components": _DISCORD_ROWS},
    "required": [*DISCORD["required"], "components"],
}  # fmt: skip
DISCORD_BOT_POST = {
    **DISCORD_BOT_EDIT,
    "properties": DISCORD_BOT_EDIT["properties"] | {"nonce": text(25), "enforce_nonce": {"const": True}},
    "required": [*DISCORD_BOT_EDIT["required"], "nonce", "enforce_nonce"],
}

# https://core.telegram.org/bots/api#sendmessage and #editmessagetext
_TELEGRAM = {"chat_id": text(64), "text": text(40_000), "parse_mode": {"const": "HTML"}}
_PREVIEW = {"link_preview_options": thing({"is_disabled": {"type": "boolean"}})}
_KEYBOARD = {
    "reply_markup": thing(
        {"inline_keyboard": some(some(thing({"text": text(64), "callback_data": text(64)}), 8), 100, 0)}
    )
}
TELEGRAM_SEND = thing(
    _TELEGRAM,
    {
        **_PREVIEW,
        **_KEYBOARD,
        "disable_notification": {"type": "boolean"},
        "reply_parameters": thing(
            {"message_id": {"type": "integer"}}, {"allow_sending_without_reply": {"type": "boolean"}}
        ),
    },
)
TELEGRAM_EDIT = thing({**_TELEGRAM, "message_id": {"type": "integer"}}, _PREVIEW | _KEYBOARD)

# https://developer.pagerduty.com/docs/events-api-v2-overview
_PD_KEYS = {"routing_key": {"type": "string", "minLength": 32, "maxLength": 32}, "dedup_key": text(255)}
PAGERDUTY = {
    "oneOf": [
        thing({**_PD_KEYS, "event_action": {"enum": ["acknowledge", "resolve"]}}),
        thing(
            {
                **_PD_KEYS,
                "event_action": {"const": "trigger"},
                "payload": thing(
                    {
                        "summary": text(1024),
                        "source": text(1024),
                        "severity": {"enum": ["critical", "error", "warning", "info"]},
                    },
                    {
                        "timestamp": TIME, "component": text(1024), "group": text(1024), "class": text(1024),
                        "custom_details": {"type": "object"},
                    },
                ),
            },
            {"client": text(100), "client_url": URL, "links": some(thing({"href": URL, "text": text(200)}), 10)},
        ),
    ]
}  # fmt: skip

# https://docs.opsgenie.com/docs/alert-api
OPSGENIE_CREATE = thing(
    {"message": text(130)},
    {
        "alias": text(512), "description": text(15_000), "entity": text(512), "source": text(100),
        "priority": {"enum": ["P1", "P2", "P3", "P4", "P5"]}, "tags": some(text(50), 20),
        "details": {"type": "object", "additionalProperties": {"type": "string"}},
        "responders": some(
            thing(
                {"type": {"enum": ["team", "user", "escalation", "schedule"]}},
                {"name": text(100), "username": text(100)},
            ),
            50,
        ),
    },
)  # fmt: skip
OPSGENIE_NOTE = thing({"user": text(100), "source": text(100), "note": text(25_000)})

# api/v2/openapi.yaml of Alertmanager: postableAlerts
_LABEL_SET = {
    "type": "object", "propertyNames": {"pattern": "^[a-zA-Z_][a-zA-Z0-9_]*$"},
    "additionalProperties": {"type": "string"},
}  # fmt: skip
ALERTMANAGER = some(
    thing(
        {"labels": _LABEL_SET | {"required": ["alertname"]}},
        {"annotations": _LABEL_SET, "startsAt": TIME, "endsAt": TIME, "generatorURL": URL},
    ),
    1000,
)
