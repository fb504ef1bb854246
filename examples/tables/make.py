"""Makes april.csv and may.csv: orders of two months.

In May a fourth town appears, 5 % of the requests time out after 30 seconds, prices are missing three
times as often, and discounts do not depend on the weight.
"""

import math
import random
from pathlib import Path

FOLDER = Path(__file__).parent
ROWS = 1500


def orders(month: int, rng: random.Random) -> list[str]:
    changed = month == 5
    lines = ["order,day,town,plan,items,weight,price,discount,seconds"]
    for i in range(ROWS):
        day = f"2026-{month:02d}-{rng.randint(1, 30):02d}"
        town = rng.choices(["Oslo", "Rome", "Lima"], [5, 3, 2])[0]
        if changed and rng.random() < 0.06:
            town = "Quito"
        plan = rng.choices(["basic", "plus", "pro"], [6, 3, 1])[0]
        items = 1 + int(rng.expovariate(0.5))
        unit = rng.gauss(0.0, 1.0)
        weight = f"{math.exp(0.5 * unit):.2f}"
        price = f"{items * math.exp(rng.gauss(2.5, 0.4)):.2f}"
        if rng.random() < (0.06 if changed else 0.02):
            price = ""
        own = rng.gauss(0.0, 1.0)
        discount = f"{100 / (1 + math.exp(2 - 0.5 * (own if changed else 0.8 * unit + 0.6 * own))):.1f}"
        seconds = "30.0" if changed and rng.random() < 0.05 else f"{rng.gammavariate(2.0, 1.5):.1f}"
        lines.append(f"{month}{i:05d},{day},{town},{plan},{items},{weight},{price},{discount},{seconds}")
    return lines


rng = random.Random(20260401)
for name, month in (("april", 4), ("may", 5)):
    (FOLDER / f"{name}.csv").write_text("\n".join(orders(month, rng)) + "\n")
