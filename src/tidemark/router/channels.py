"""The channels of a client whose queues live in several groups: finding its frames, and whose they are.

Errors close what they are about: a `ChannelError` its channel, a `RemoteProtocolError` the connection. An exception
that nobody expected closes the connection with 541 and is noted for the log; it never reaches other connections.

Invariant: a number is not used for a new channel before every group has forgotten the one before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from tidemark.errors import ChannelError, ChannelFault, CommandInvalid, NotAllowed, TidemarkError
from tidemark.model.runs import PublishRun
from tidemark.router.channel import CLOSE, CLOSE_OK, Channel
from tidemark.router.channel import Event as ChannelEvent
from tidemark.router.link import Link
from tidemark.wire.amqp091.cutter import Piece
from tidemark.wire.amqp091.events import AckRun, Event, Fault, Heartbeat, MethodFrame, Oversized
from tidemark.wire.amqp091.methods import (
    BasicAck,
    BasicPublish,
    ChannelCloseOk,
    ChannelOpen,
    encode_method,
    ids_of,
)
from tidemark.wire.amqp091.scanner import Scanner

if TYPE_CHECKING:
    from tidemark.router.connection import Router


class Channels:
    def __init__(self, router: Router) -> None:
        self.router = router
        self.kept_bytes = 0
        """What is kept for channels that wait."""
        self.waiting: dict[Channel, None] = {}
        self._config = router.outside.config
        self._scanner = Scanner(self._config.frame_bytes_max, self._config.message_bytes_max, 0)
        self._open: dict[int, Channel] = {}
        self._draining: dict[int, set[str]] = {}
        """By number: groups that have not yet answered our Close of a channel that is gone."""
        self._reopening: dict[int, Channel] = {}
        """Channels whose number is still known to a group."""
        self._resuming: dict[Channel, None] = {}
        self._for_room: deque[Callable[[], None]] = deque()
        """What goes on when links have room."""

    def begin(self, channel_max: int, frame_max: int) -> None:
        """The connection is open, within these limits."""
        self._scanner.channel_max = channel_max
        self._scanner.frame_max = frame_max

    # What the client says ----------------------------------------------------------------------------

    def receive(self, data: memoryview) -> int:
        events, used = self._scanner.feed(data)
        for event in events:
            self._take(event)
        unfinished, limit = self._scanner.assembling_bytes, self._config.unfinished_bytes_max
        if unfinished > limit:
            error = NotAllowed(reason=f"unfinished messages hold {unfinished} bytes, over {limit}")
            self.router.fail(error, (0, 0))
        return used

    def _take(self, event: Event) -> None:
        if isinstance(event, Heartbeat):
            return
        if isinstance(event, Fault):
            # The frames behind it may make sense, as long as we wait for Close-Ok.
            self._scanner = Scanner(self._scanner.frame_max, 0, self._scanner.channel_max)
            self.router.fail(event.error, (event.class_id, event.method_id))
            return
        channel = self._open.get(event.channel)
        if event.channel and not self.router.is_open:
            return  # nothing counts after a Close
        if channel is not None:
            found = channel
            self.guarded(found, lambda: found.receive(event), _ids(event))
        elif not event.channel:
            if isinstance(event, MethodFrame):
                self.router.take_method(event.method)
            else:
                error = CommandInvalid(reason="messages and acks do not belong on channel 0")
                self.router.fail(error, _ids(event))
        else:
            self._open_channel(event)

    def _open_channel(self, event: ChannelEvent) -> None:
        number = event.channel
        if not (isinstance(event, MethodFrame) and isinstance(event.method, ChannelOpen)):
            error = ChannelFault(reason=f"channel {number} is not open: expected 'channel.open'")
            self.router.fail(error, _ids(event))
            return
        channel = self._open[number] = Channel(self, number)
        if self._draining.get(number):
            channel.wait()
            self._reopening[number] = channel
        else:
            self.guarded(channel, channel.open)

    def guarded(self, channel: Channel, step: Callable[[], None], ids: tuple[int, int] = (0, 0)) -> None:
        """Do something about a channel, and close what its error is about.

        `ids` are those of the method that is taken; without them it is the one that the channel is answering.
        """
        try:
            step()
        except ChannelError as error:
            self._scanner.discard(channel.number)
            channel.fail(error, ids)
        except TidemarkError as error:
            self.router.fail(error, ids if any(ids) else channel.asked)
        except Exception as error:
            self.router.fail(self.router.unexpected(error), ids)

    # What channels say -------------------------------------------------------------------------------

    def pause(self, channel: Channel) -> None:
        self.waiting[channel] = None

    def resume(self, channel: Channel) -> None:
        """It waits no more: let it take what was kept meanwhile."""
        self.waiting.pop(channel, None)
        if channel in self._resuming:
            return
        self._resuming[channel] = None
        while (event := channel.next_kept()) is not None:
            found = event
            self.guarded(channel, lambda: channel.take_kept(found), _ids(found))  # noqa: B023
        del self._resuming[channel]
        self.router.finish()

    def when_there_is_room(self, then: Callable[[], None]) -> None:
        """Call `then` when links have sent enough of what waits for them."""
        self._for_room.append(then)

    def drained(self) -> None:
        while self._for_room and self.router.links_have_room():
            self._for_room.popleft()()

    def asks_since_ms(self, now_ms: int) -> int:
        """Since when a channel has waited for a fresh copy of the wiring; now, if none does."""
        return min((channel.asks_since_ms or now_ms for channel in self.waiting), default=now_ms)

    def drain(self, group: str, number: int) -> None:
        """The channel is closed there; what still comes of it is nothing to anybody."""
        self._scanner.discard(number)
        self._draining.setdefault(number, set()).add(group)

    def forget(self, channel: Channel) -> None:
        if self._open.get(channel.number) is channel:
            del self._open[channel.number]
        channel.drop_kept()

    def clear(self) -> None:
        """The connection ends."""
        self._scanner.body_max = 0  # content that still comes is dropped as it comes
        for channel in self._open.values():
            self._scanner.discard(channel.number)
            channel.release()
        self._open.clear()
        self._reopening.clear()
        self._draining.clear()
        self._for_room.clear()
        self.waiting.clear()

    # What groups say ---------------------------------------------------------------------------------

    def heard(self, link: Link, piece: Piece) -> None:
        number, group = piece[0], link.group
        draining = self._draining.get(number)
        if draining is not None and group in draining:
            self._drained(link, piece, draining)
            return
        channel = self._open.get(number)
        if channel is not None:
            self.guarded(channel, lambda: channel.heard(group, piece))

    def _drained(self, link: Link, piece: Piece, draining: set[str]) -> None:
        number = piece[0]
        if piece[1] == CLOSE:
            link.send(encode_method(number, ChannelCloseOk()))
        elif piece[1] == CLOSE_OK:
            draining.discard(link.group)
            if not draining:
                del self._draining[number]
                channel = self._reopening.pop(number, None)
                if channel is not None:
                    self.guarded(channel, channel.open)


def _ids(event: Event) -> tuple[int, int]:
    """Class and method of an event, for the Close that names the offender."""
    if isinstance(event, MethodFrame):
        return ids_of(event.method)
    if isinstance(event, AckRun):
        return ids_of(BasicAck)
    if isinstance(event, PublishRun | Oversized):
        return ids_of(BasicPublish)
    return 0, 0
