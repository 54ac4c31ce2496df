"""Which function answers which request code, in which thread, and who may ask.

LOOP answers at once, STORE appends, GROUP keeps who is there and where groups stand, READ reads. What of STORE and READ
needs no waiting is done in the event loop: `Route.at_once`.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable
from typing import Any, NamedTuple

from broker.errors import BrokerError, MessageRejected, NotPermitted, ProtocolError, StoreFull
from broker.log_fields import event
from broker.remoting.codes import RequestCode as Code
from broker.remoting.codes import ResponseCode
from broker.remoting.command import RemotingCommand
from broker.server import acl
from broker.server.context import Refused, Request, ServerContext
from broker.server.requests import (
    admin,
    ends,
    naming,
    plain_sends,
    presence,
    pulls,
    queues,
    relay,
    rights,
    sends,
    stats,
    tuning,
)

log = logging.getLogger("broker.server")


Handler = Callable[[ServerContext, Request], Any]


class Lane(enum.Enum):
    """Where a request is worked on."""

    LOOP = 0
    STORE = 1
    GROUP = 2
    READ = 3


class Level(enum.Enum):
    """Who may ask: everyone who may connect, administrators (with an ACL), and nobody unless `admin` is set."""

    OPEN = 0
    MANAGE = 1
    DANGEROUS = 2


class Route(NamedTuple):
    """One request code."""

    handler: Handler
    lane: Lane = Lane.READ
    level: Level = Level.OPEN
    needs: rights.Needs | None = None  # of accounts without admin: true
    at_once: Handler | None = None  # None, and nothing done, where it would wait


_OPEN, _MANAGE, _DANGEROUS = Level.OPEN, Level.MANAGE, Level.DANGEROUS

ROUTES: dict[int, Route] = {
    Code.SEND_MESSAGE: Route(sends.send_message, Lane.STORE, _OPEN, rights.to_send, sends.send_at_once),
    Code.SEND_MESSAGE_V2: Route(sends.send_message, Lane.STORE, _OPEN, rights.to_send, plain_sends.send_at_once),
    Code.SEND_BATCH_MESSAGE: Route(sends.send_batch, Lane.STORE, _OPEN, rights.to_send),
    Code.CONSUMER_SEND_MSG_BACK: Route(sends.send_back, Lane.STORE, _OPEN, rights.to_send_back),
    Code.END_TRANSACTION: Route(ends.end_transaction, Lane.STORE, at_once=ends.end_at_once),
    Code.SEND_REPLY_MESSAGE: Route(relay.send_reply, Lane.LOOP, _OPEN, rights.to_send),
    Code.SEND_REPLY_MESSAGE_V2: Route(relay.send_reply, Lane.LOOP, _OPEN, rights.to_send),
    Code.PULL_MESSAGE: Route(pulls.pull_message, Lane.READ, _OPEN, rights.to_pull, pulls.pull_at_once),
    Code.LITE_PULL_MESSAGE: Route(pulls.pull_message, Lane.READ, _OPEN, rights.to_pull, pulls.pull_at_once),
    Code.QUERY_MESSAGE: Route(queues.query_message, Lane.READ, _OPEN, rights.to_query),
    Code.VIEW_MESSAGE_BY_ID: Route(queues.view_message, Lane.READ, _OPEN, rights.to_view),
    Code.QUERY_CONSUMER_OFFSET: Route(queues.query_consumer_offset, Lane.GROUP, _OPEN, rights.to_query_offset),
    Code.UPDATE_CONSUMER_OFFSET: Route(queues.update_consumer_offset, Lane.GROUP, _OPEN, rights.to_update_offset),
    Code.SEARCH_OFFSET_BY_TIMESTAMP: Route(queues.search_offset),
    Code.GET_MAX_OFFSET: Route(queues.get_max_offset),
    Code.GET_MIN_OFFSET: Route(queues.get_min_offset),
    Code.GET_EARLIEST_MSG_STORETIME: Route(queues.get_earliest_store_time),
    Code.HEART_BEAT: Route(presence.heart_beat, Lane.GROUP, _OPEN, rights.to_join),
    Code.UNREGISTER_CLIENT: Route(presence.unregister_client, Lane.GROUP),
    Code.GET_CONSUMER_LIST_BY_GROUP: Route(presence.get_consumer_list, Lane.GROUP, _OPEN, rights.to_list_group),
    Code.QUERY_ASSIGNMENT: Route(presence.query_assignment, Lane.GROUP, _OPEN, rights.to_be_assigned),
    Code.LOCK_BATCH_MQ: Route(presence.lock_batch, Lane.GROUP, _OPEN, rights.to_lock),
    Code.UNLOCK_BATCH_MQ: Route(presence.unlock_batch, Lane.GROUP, _OPEN, rights.to_lock),
    Code.CHECK_CLIENT_CONFIG: Route(presence.check_client_config),
    # The name server's
    Code.GET_ROUTEINFO_BY_TOPIC: Route(naming.get_route),
    Code.GET_BROKER_CLUSTER_INFO: Route(naming.get_cluster, Lane.LOOP),
    Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: Route(naming.get_topics),
    Code.GET_TOPICS_BY_CLUSTER: Route(naming.get_topics_by_cluster),
    Code.GET_SYSTEM_TOPIC_LIST_FROM_NS: Route(naming.get_system_topics),
    Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: Route(naming.get_system_topics),
    Code.PUT_KV_CONFIG: Route(naming.put_value, Lane.LOOP, _MANAGE),
    Code.GET_KV_CONFIG: Route(naming.get_value, Lane.LOOP),
    Code.DELETE_KV_CONFIG: Route(naming.delete_value, Lane.LOOP, _MANAGE),
    Code.GET_KVLIST_BY_NAMESPACE: Route(naming.get_values, Lane.LOOP),
    Code.DELETE_TOPIC_IN_NAMESRV: Route(naming.delete_topic, Lane.LOOP, _MANAGE),
    Code.WIPE_WRITE_PERM_OF_BROKER: Route(naming.wipe_write_perm, Lane.READ, _DANGEROUS),
    Code.ADD_WRITE_PERM_OF_BROKER: Route(naming.add_write_perm, Lane.READ, _DANGEROUS),
    Code.GET_NAMESRV_CONFIG: Route(naming.get_name_server_config, Lane.LOOP, _MANAGE),
    # Administrators'
    Code.UPDATE_AND_CREATE_TOPIC: Route(admin.create_topic, Lane.STORE, _MANAGE),
    Code.DELETE_TOPIC_IN_BROKER: Route(admin.delete_topic, Lane.STORE, _MANAGE),
    Code.GET_TOPIC_CONFIG: Route(admin.get_topic_config),
    Code.GET_ALL_TOPIC_CONFIG: Route(admin.get_all_topics),
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: Route(admin.put_group, Lane.GROUP, _MANAGE),
    Code.DELETE_SUBSCRIPTIONGROUP: Route(admin.delete_group, Lane.GROUP, _MANAGE),
    Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: Route(admin.get_all_groups),
    Code.GET_SUBSCRIPTIONGROUP_CONFIG: Route(admin.get_group),
    Code.INVOKE_BROKER_TO_RESET_OFFSET: Route(admin.reset_offsets, Lane.GROUP, _MANAGE),
    Code.CLONE_GROUP_OFFSET: Route(admin.clone_positions, Lane.GROUP, _MANAGE),
    Code.UPDATE_BROKER_CONFIG: Route(tuning.update_config, Lane.LOOP, _DANGEROUS),
    Code.GET_BROKER_CONFIG: Route(stats.get_broker_config, Lane.READ, _MANAGE),
    Code.GET_BROKER_RUNTIME_INFO: Route(stats.get_runtime_info),
    Code.GET_TOPIC_STATS_INFO: Route(stats.get_topic_stats),
    Code.GET_CONSUME_STATS: Route(stats.get_consume_stats),
    Code.GET_BROKER_CONSUME_STATS: Route(stats.get_broker_consume_stats),
    Code.GET_CONSUMER_CONNECTION_LIST: Route(presence.get_consumer_connections),
    Code.GET_PRODUCER_CONNECTION_LIST: Route(presence.get_producer_connections),
    Code.GET_ALL_PRODUCER_INFO: Route(presence.get_all_producers),
    Code.QUERY_TOPIC_CONSUME_BY_WHO: Route(stats.query_groups_of_topic),
    Code.QUERY_TOPICS_BY_CONSUMER: Route(stats.query_topics_of_group),
    Code.QUERY_SUBSCRIPTION_BY_CONSUMER: Route(stats.query_subscription),
    Code.QUERY_CONSUME_TIME_SPAN: Route(stats.query_time_spans),
    Code.QUERY_CONSUME_QUEUE: Route(queues.query_consume_queue, Lane.READ, _OPEN, rights.to_query_queue),
    Code.VIEW_BROKER_STATS_DATA: Route(stats.view_stats),
    Code.GET_ALL_CONSUMER_OFFSET: Route(stats.get_all_positions, Lane.GROUP),
    Code.CLEAN_EXPIRED_CONSUMEQUEUE: Route(stats.nothing_to_do, Lane.LOOP, _MANAGE),
    Code.CLEAN_UNUSED_TOPIC: Route(stats.nothing_to_do, Lane.LOOP, _MANAGE),
    Code.GET_CONSUMER_RUNNING_INFO: Route(relay.to_consumer, Lane.LOOP, _MANAGE),
    Code.CONSUME_MESSAGE_DIRECTLY: Route(relay.consume_directly, Lane.READ, _DANGEROUS),
}


def admitted(context: ServerContext, control: acl.AccessControl | None, request: Request) -> tuple[Route, Request]:
    """What answers a request, and the request with its account, once it is sure that its sender may ask.

    Raises Refused, ProtocolError, StoreError when the store was closed before its server.
    """
    context.store.writer.check_open()
    command = request.command
    route = ROUTES.get(command.code)
    if route is None:
        text = f" request type {command.code} not supported"
        raise Refused(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, text)
    if route.level is _DANGEROUS and not context.settings.admin:
        text = f"{Code(command.code).name} is refused: start the server with --admin to allow it"
        raise Refused(ResponseCode.NO_PERMISSION, text)
    if control is None:
        return route, request
    try:
        account = control.account(command.ext, command.body, request.connection.host)
    except acl.Denied as error:
        raise Refused(ResponseCode.NO_PERMISSION, str(error)) from None
    if account is not None and not account.is_admin:
        route = _restricted(route, command)
    return route, request._replace(account=account)


def _restricted(route: Route, command: RemotingCommand) -> Route:
    """The same for an account that needs rights: they are looked at in the thread that does the work."""
    if route.level is not Level.OPEN:
        raise Refused(ResponseCode.NO_PERMISSION, f"{Code(command.code).name} needs an account with admin: true")
    needs = route.needs
    if needs is None:
        return route

    def checked(handler: Handler) -> Handler:
        def run(context: ServerContext, request: Request) -> Any:
            rights.check(context, request, needs)
            return handler(context, request)

        return run

    return route._replace(handler=checked(route.handler), at_once=route.at_once and checked(route.at_once))


def refusal(context: ServerContext, command: RemotingCommand, error: BaseException) -> RemotingCommand:
    """The answer to a request that failed. What nobody expected is logged, without the request's body."""
    if isinstance(error, Refused | ProtocolError):
        return command.answer(error.code, str(error))
    if isinstance(error, MessageRejected):
        return command.answer(ResponseCode.MESSAGE_ILLEGAL, str(error))
    if isinstance(error, NotPermitted):
        return command.answer(ResponseCode.__members__.get(error.code, ResponseCode.NO_PERMISSION), str(error))
    if isinstance(error, StoreFull):
        context.is_full(error)
        return command.answer(ResponseCode.SERVICE_NOT_AVAILABLE, str(error))
    if isinstance(error, MemoryError):
        context.has_no_memory()
        return command.answer(ResponseCode.SYSTEM_BUSY, "[OVERLOAD] the server gets no more memory for this")
    if not isinstance(error, BrokerError):
        log.error("request %s failed", command.code, exc_info=error, extra=event("request-failed"))
        return command.answer(ResponseCode.SYSTEM_ERROR, f"the server has a defect here: {type(error).__name__}")
    return command.answer(ResponseCode.SYSTEM_ERROR, str(error))
