"""Slack: as a bot one message for each incident, which is updated; by an incoming webhook one for each notice."""

from __future__ import annotations

import json
from typing import Any, Final

from irregulars.errors import SinkBusy, SinkRejected
from irregulars.sinks.notices.http_post import HttpChannel, HttpOptions, HttpPost, Secret
from irregulars.sinks.notices.notice import AWAY_S, NotArrived, Notice, summary_of, written

API: Final = "https://slack.com/api"
COLOURS: Final = {"page": "#c0392b", "ticket": "#e67e22", "note": "#7f8c8d", "resolved": "#27ae60"}
_LONGEST: Final = 2900
_PASSING: Final = frozenset({"ratelimited", "rate_limited", "internal_error", "fatal_error", "service_unavailable",
                             "request_timeout", "team_added_to_org"})  # fmt: skip
_CREDENTIALS: Final = frozenset({"not_authed", "invalid_auth", "token_expired", "token_revoked", "account_inactive",
                                 "missing_scope", "not_in_channel"})  # fmt: skip
_GONE: Final = frozenset({"message_not_found", "cant_update_message", "edit_window_closed"})
_CREDENTIALS_S: Final = 60.0
# Text is neither formatted nor searched for links and names, and no page is fetched to be shown below it
# (https://docs.slack.dev/reference/methods/chat.postMessage)
_AS_IT_IS: Final = {"parse": "none", "mrkdwn": False, "link_names": False, "unfurl_links": False,
                    "unfurl_media": False}  # fmt: skip


class SlackBotChannel(HttpChannel):
    """Posts a message when an incident opens, and updates it when it changes and ends (scope ``chat:write``).

    `channel` is the id of a Slack channel.
    """

    def __init__(
        self, name: str, token: Secret, channel: str, api: str = API, settings: HttpOptions | None = None
    ) -> None:
        self.name: Final = name
        self._token, self._channel = token, channel
        self._http = HttpPost(lambda: api.rstrip("/"), settings, [token])

    def deliver(self, notice: Notice) -> str | None:
        """Post or update; the reference is channel and time stamp of the message."""
        message = written(message_of, notice)
        if notice.reference is not None and ":" in notice.reference:
            channel, _, stamp = notice.reference.partition(":")
            try:
                return self._call("chat.update", {"channel": channel, "ts": stamp, **message})
            except _MessageGone:
                pass  # somebody deleted it, or it may not be changed any more: a new one then
        return self._call("chat.postMessage", {"channel": self._channel, **message})

    def _call(self, method: str, arguments: dict[str, Any]) -> str | None:
        headers = {"Content-Type": "application/json; charset=utf-8", "Authorization": f"Bearer {self._token()}"}
        body = self._http.post(json.dumps(arguments).encode(), headers, f"/{method}")
        try:
            said: dict[str, Any] = json.loads(body)
            if said["ok"]:
                return f"{said['channel']}:{said['ts']}"
            error = str(said.get("error"))
        except (ValueError, KeyError, TypeError) as reason:
            # No `NotArrived`: Slack may have posted the message, whatever became of its answer.
            raise SinkBusy(self._http.rejection(f"{method} must answer with JSON", body), 0.0) from reason
        text = self._http.rejection(f"{method} must be done", error)
        if error in _GONE and method == "chat.update":
            raise _MessageGone(text)
        if error in _PASSING | _CREDENTIALS:
            raise NotArrived(text, _CREDENTIALS_S if error in _CREDENTIALS else AWAY_S)
        raise SinkRejected(text)


class _MessageGone(SinkRejected):
    """The message that was to be updated can't be."""


class SlackWebhookChannel(HttpChannel):
    """Posts a message for each notice to an incoming webhook, whose URL is a secret."""

    def __init__(self, name: str, url: Secret, settings: HttpOptions | None = None) -> None:
        self.name: Final = name
        self._http = HttpPost(url, settings, is_url_secret=True)

    def deliver(self, notice: Notice) -> str | None:
        """Post it; see `Channel.deliver`."""
        self._http.post(json.dumps(written(message_of, notice)).encode(), {"Content-Type": "application/json"})
        return None


def message_of(notice: Notice) -> dict[str, Any]:
    """Return text and attachment of a message: event, evidence, next step."""
    summary, alert = summary_of(notice, _LONGEST), notice.alert
    colour = COLOURS["resolved" if notice.event == "resolved" else notice.severity]
    fields = [
        {"title": "Evidence", "value": _plain(str(alert["evidence"])[:_LONGEST]), "short": False},
        {"title": "Next", "value": _plain(_beyond(summary, str(alert["next_step"]))[:_LONGEST]), "short": False},
    ]
    if notice.runbook is not None:
        fields.append({"title": "Runbook", "value": notice.runbook, "short": False})
    footer = _plain(f"{notice.incident} revision {notice.revision}")
    text = _plain(summary)
    attachment = {"color": colour, "fallback": text, "fields": fields, "footer": footer, "mrkdwn_in": []}
    if notice.link is not None:
        attachment |= {"title": "The incident, live", "title_link": notice.link}
    return {"text": text, "attachments": [attachment], **_AS_IT_IS}


def _beyond(summary: str, next_step: str) -> str:
    """Return the part of the next step that the summary does not have: where to look.

    >>> _beyond("OPENED hang: it stands. Next: test n1. This is the third.", "Test n1. On n1: dmesg.")
    'On n1: dmesg.'
    >>> _beyond("OPENED hang: it sta…", "Test n1. On n1: dmesg.")
    'Test n1. On n1: dmesg.'
    """
    step, _, look = next_step.partition(". ")
    return look if look and f"Next: {step[:1].lower()}{step[1:]}." in summary else next_step


def _plain(text: str) -> str:
    """Return a text in which nothing is a mention, a command or a link with another text: names come from jobs."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
