"""Changes one node's links while they carry traffic, over rtnetlink: no process, no lock, no packet dropped.

Replacing a class' parameters or a queue's limit leaves the packets in the queue; a queue that is made smaller than what
it holds keeps that and takes no more (net/sched/sch_fifo.c, fifo_init). HTB counts debts in time: the packet that is
being sent at the old rate is paid for at the old rate, a 64 KiB super-frame 5 ms at 100 Mbit/s.

A link that is down loses what is sent into it: a filter at the receiving port's ingress drops every packet that
arrives, while the sender goes on sending at the link's rate and notices nothing. Taking the interface down instead
would flush its routes and neighbours, and a rate of almost nothing would delay packets that such a link loses. Formats:
rtnetlink(7), linux/pkt_sched.h, linux/pkt_cls.h, linux/filter.h.
"""

import math
import struct
from typing import Final

from testbed.links.htb import CLASS_HANDLE, QUANTUM_BYTES, Shaper
from testbed.system.netlink import (
    NLM_F_DUMP,
    TCA_HTB_CEIL64,
    TCA_HTB_PARMS,
    TCA_HTB_RATE64,
    TCA_KIND,
    TCA_OPTIONS,
    TICK_S,
    LinkMonitor,
    attributes,
)

RTM_NEWQDISC: Final = 36
RTM_GETQDISC: Final = 38
RTM_NEWTCLASS: Final = 40
RTM_NEWTFILTER: Final = 44
RTM_DELTFILTER: Final = 45
RTM_GETTFILTER: Final = 46
NLM_F_ACK: Final = 0x4
NLM_F_EXCL: Final = 0x200
NLM_F_CREATE: Final = 0x400

ROOT: Final = 0x10000
LEAF: Final = 0x100000
INGRESS_PARENT: Final = 0xFFFFFFF1
INGRESS: Final = 0xFFFF0000
CUT_PRIORITY: Final = 1
"""Before every other filter at the port's ingress: netem's redirection has a number that the kernel chose, 49152."""
_ETH_P_ALL: Final = 0x0003
_LINKLAYER_ETHERNET: Final = 1
_TC_ACT_SHOT: Final = 2
_BPF_RET_K: Final = 0x06
_TCA_BPF_OPS_LEN: Final = 4
_TCA_BPF_OPS: Final = 5
_TCA_BPF_FLAGS: Final = 8
_TCA_BPF_FLAG_ACT_DIRECT: Final = 1

_TCMSG: Final = struct.Struct("=BBHiIII")
_ATTRIBUTE: Final = struct.Struct("=HH")
_RATESPEC: Final = struct.Struct("=BBHhHI")
_HTB_OPT_TAIL: Final = struct.Struct("=IIIII")
_FILTER: Final = (CUT_PRIORITY << 16) | (_ETH_P_ALL << 8)
"""tcm_info of a filter: its priority, and its protocol in network byte order."""


class LinkController(LinkMonitor):
    """Writes and reads one network namespace: the one the calling thread was in when it was made. One thread at a
    time."""

    def change_shaper(self, index: int, shaper: Shaper) -> None:
        """Give the interface's class and queue these parameters. Raises NetlinkError."""
        self._send(RTM_NEWTCLASS, 0, index, CLASS_HANDLE, ROOT, htb_attributes(shaper))
        limit = struct.pack("=I", shaper.queue_bytes)
        self._send(RTM_NEWQDISC, 0, index, LEAF, CLASS_HANDLE, _kind("bfifo") + _attribute(TCA_OPTIONS, limit))

    def queue_limit_bytes(self, index: int) -> int | None:
        """What the interface's queue holds at most; None without one. Raises NetlinkError."""
        for body in self.request(RTM_GETQDISC, NLM_F_DUMP, _TCMSG.pack(0, 0, 0, index, 0, 0, 0)):
            _, _, _, owner, handle, _, _ = _TCMSG.unpack_from(body)
            if (owner, handle) == (index, LEAF):
                options = dict(attributes(body, _TCMSG.size)).get(TCA_OPTIONS, b"")
                return int(struct.unpack_from("=I", options)[0]) if len(options) >= 4 else None
        return None

    def set_down(self, index: int) -> None:
        """Lose every packet that arrives at the interface from now on. Raises NetlinkError."""
        if not self._has_ingress(index):
            self._send(RTM_NEWQDISC, NLM_F_CREATE | NLM_F_EXCL, index, INGRESS, INGRESS_PARENT, _kind("ingress"))
        drop = struct.pack("=HBBI", _BPF_RET_K, 0, 0, _TC_ACT_SHOT)
        options = _attribute(_TCA_BPF_OPS_LEN, struct.pack("=H", 1)) + _attribute(_TCA_BPF_OPS, drop)
        options += _attribute(_TCA_BPF_FLAGS, struct.pack("=I", _TCA_BPF_FLAG_ACT_DIRECT))
        filter_ = _kind("bpf") + _attribute(TCA_OPTIONS, options)
        self._send(RTM_NEWTFILTER, NLM_F_CREATE | NLM_F_EXCL, index, 0, INGRESS, filter_, info=_FILTER)

    def set_up(self, index: int) -> None:
        """Undo :meth:`set_down`; the ingress that it may have made stays, and does nothing. Raises NetlinkError."""
        self._send(RTM_DELTFILTER, 0, index, 0, INGRESS, _kind("bpf"), info=_FILTER)

    def is_down(self, index: int) -> bool:
        """Whether the interface loses what arrives. Raises NetlinkError."""
        request = _TCMSG.pack(0, 0, 0, index, 0, INGRESS, 0)
        for body in self.request(RTM_GETTFILTER, NLM_F_DUMP, request):
            _, _, _, owner, handle, _, info = _TCMSG.unpack_from(body)
            kind = dict(attributes(body, _TCMSG.size)).get(TCA_KIND, b"").rstrip(b"\0")
            if (owner, kind, info >> 16) == (index, b"bpf", CUT_PRIORITY) and handle != 0:
                return True
        return False

    def _has_ingress(self, index: int) -> bool:
        for body in self.request(RTM_GETQDISC, NLM_F_DUMP, _TCMSG.pack(0, 0, 0, index, 0, 0, 0)):
            _, _, _, owner, handle, _, _ = _TCMSG.unpack_from(body)
            if (owner, handle) == (index, INGRESS):
                return True
        return False

    def _send(self, kind: int, flags: int, index: int, handle: int, parent: int, body: bytes, *, info: int = 0) -> None:
        payload = _TCMSG.pack(0, 0, 0, index, handle, parent, info) + body
        for _ in self.request(kind, flags | NLM_F_ACK, payload):
            pass


def _kind(name: str) -> bytes:
    return _attribute(TCA_KIND, name.encode() + b"\0")


def _attribute(kind: int, value: bytes) -> bytes:
    length = _ATTRIBUTE.size + len(value)
    return _ATTRIBUTE.pack(length, kind) + value + bytes(-length % 4)


def htb_attributes(shaper: Shaper) -> bytes:
    """What a message that changes the class of a shaper says of it."""
    rate_bytes = round(shaper.rate_bps / 8)
    ratespec = _RATESPEC.pack(0, _LINKLAYER_ETHERNET, 0, 0, 0, min(rate_bytes, 2**32 - 1))
    burst_ticks = math.ceil(shaper.burst_bytes / rate_bytes / TICK_S)
    parameters = 2 * ratespec + _HTB_OPT_TAIL.pack(burst_ticks, burst_ticks, QUANTUM_BYTES, 0, 0)
    options = _attribute(TCA_HTB_PARMS, parameters)
    # Rates of 34 Gbit/s and more do not fit the older field.
    for kind in (TCA_HTB_RATE64, TCA_HTB_CEIL64):
        options += _attribute(kind, struct.pack("=Q", rate_bytes))
    return _kind("htb") + _attribute(TCA_OPTIONS, options)
