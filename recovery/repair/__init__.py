"""Operations that change a damaged store: recovery after a crash, slot conflicts, salvage."""
