"""Another assistant on the same loop: python examples/shopbot.py ["question"]"""

import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from backend import BackendError, visible
from harness import ENDINGS, run
from tools import REGISTRY, tool

EXAMPLE = '{"name": "look_up_orders", "arguments": {"item": "yoga mat"}}'
SYSTEM = f"""\
You help the customer of a shop. You cannot see the orders, so call a tool: look_up_orders finds an
order, then get_tracking_status tells where it is. Reply with one tool call and nothing else:
<tool_call>\n{EXAMPLE}\n</tool_call>
If the result does not show the answer, call the next tool. If it does, reply in plain words."""
ORDERS = """ada: order A-1017, yoga mat, ordered two months ago, by UPS, tracking number UP-20931
ada: order A-1042, running shoes and socks, ordered last week, by DHL, tracking number DH-58213
bob: order A-1043, running shoes, ordered last week, by DHL, tracking number DH-58377"""
PARCELS = {"UP-20931": "delivered", "DH-58213": "in Leipzig, delivery tomorrow before 18:00"}


@tool
def look_up_orders(item: Annotated[str, "What was bought."]) -> str:
    """Find an order of this customer, with its tracking number."""
    mine = [line for line in ORDERS.splitlines() if line.startswith("ada")]  # who is signed in
    return "\n".join([line for line in mine if item.lower() in line] or mine)


@tool
def get_tracking_status(tracking_number: Annotated[str, "As in the order."]) -> str:
    """Tell where an order is, by the tracking number that look_up_orders gives."""
    return PARCELS.get(tracking_number, f"error: no such number. First call\n{EXAMPLE}")


def watch(replies: list, event: str, data: Any) -> None:
    """Show the events of run() that a reader wants to see."""
    if event == "request":
        print(f"--- Round {len(replies) + 1}: asking the model ---", flush=True)
    elif event == "reply":
        replies.append(data)
    elif event in ("call", "result", "notice"):
        told = f"{data.function.name} {data.function.arguments}" if event == "call" else data
        print(visible(told))


if __name__ == "__main__":
    question = " ".join(sys.argv[1:]) or "Where's my order? I bought running shoes last week."
    mine = {name: REGISTRY[name] for name in ("look_up_orders", "get_tracking_status")}
    try:
        result = run(question, registry=mine, system=SYSTEM, watch=partial(watch, []))
    except (BackendError, KeyboardInterrupt) as error:
        sys.exit(f"error: {error}" if str(error) else 130)
    print(visible(result.answer or f"error: {result.error}"))
    sys.exit(ENDINGS[result.finish_reason][0])
