"""The Java and Go in docs/howto/answer.md compile as they are printed, against Spring and the Go client."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.compat import rocketmq
from tests.house.tree import ROOT

PAGE = ROOT / "docs" / "howto" / "answer.md"
GO_CLIENT = "github.com/apache/rocketmq-client-go/v2@v2.1.2"
JAVA_IMPORTS = """
import java.security.SecureRandom;
import java.util.HexFormat;
import org.apache.rocketmq.spring.annotation.RocketMQTransactionListener;
import org.apache.rocketmq.spring.core.RocketMQLocalTransactionListener;
import org.apache.rocketmq.spring.core.RocketMQLocalTransactionState;
import org.apache.rocketmq.spring.core.RocketMQTemplate;
import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.messaging.Message;
import org.springframework.messaging.support.MessageBuilder;
import org.springframework.stereotype.Service;
import org.springframework.transaction.annotation.Transactional;

record Order(long id, String item) {}
"""
GO_HEAD = """package main

import (
    "context"
    "crypto/rand"
    "database/sql"
    "fmt"
    "time"

    "github.com/apache/rocketmq-client-go/v2"
    "github.com/apache/rocketmq-client-go/v2/primitive"
)

type listener struct{ db *sql.DB }

func (l *listener) CheckLocalTransaction(*primitive.MessageExt) primitive.LocalTransactionState {
    return primitive.UnknowState
}

func main() {
    producer, err := rocketmq.NewTransactionProducer(&listener{})
    if err != nil {
        panic(err)
    }
    message := primitive.NewMessage("orders", []byte("lamp"))
    binding := "what --bind printed"
%s
    producer.SendMessageInTransaction(context.Background(), message)
}

%s
"""

pytestmark = pytest.mark.timeout(900)


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def test_java(tmp_path: Path) -> None:
    try:
        jars = rocketmq.jars_of("spring")
    except rocketmq.NotToBeHad as missing:
        pytest.skip(str(missing))
    classes, send = blocks("java")
    head = "class Sending { void send(RocketMQTemplate template, Order order, String binding) {"
    sending = f"{head}\n{send}\n}} }}"
    (tmp_path / "Order.java").write_text(JAVA_IMPORTS + classes + sending)
    words = ["javac", "-Xlint:-options", "-encoding", "UTF-8", "-d", str(tmp_path), "-cp", f"{jars}/*"]
    done = subprocess.run([*words, str(tmp_path / "Order.java")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "OrderListener.class").exists()


def test_go(tmp_path: Path) -> None:
    if shutil.which("go") is None:
        pytest.skip("go is not installed")
    (listener,) = blocks("go")
    properties = re.findall(r"`(message\.WithProperty\(.*?\))`", PAGE.read_text(encoding="utf-8"))
    assert len(properties) == 2
    (tmp_path / "main.go").write_text(GO_HEAD % ("\n".join(f"    {one}" for one in properties), listener))
    environment = {**os.environ, "GOFLAGS": "-mod=mod"}
    for words in (["go", "mod", "init", "example.com/shop"], ["go", "get", GO_CLIENT], ["go", "vet", "."]):
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, env=environment, check=False)
        if words[1] == "get" and done.returncode:
            pytest.skip(f"the Go client is not to be had: {done.stderr[-300:]}")
        assert done.returncode == 0, done.stderr
