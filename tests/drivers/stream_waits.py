# SPDX-License-Identifier: Apache-2.0
"""The waits, marks and blocks that order streams, for mutations.py: each is a
statement that is left out in turn. What the tests of the virtual device do not
notice has to be redundant, with the reason here."""

import dataclasses


@dataclasses.dataclass
class Wait:
    file: str
    statement: str
    after: str = ""  # the text before it, where the statement is there twice
    redundant: str = ""  # why nothing can notice
    tests: tuple = ("vdev_tests",)  # the program that has to notice

    @property
    def name(self):
        return f"{self.file}: {self.after}{' ' * bool(self.after)}{self.statement}"


def waits_of(file, *waits):
    return [
        Wait(file, **(wait if isinstance(wait, dict) else {"statement": wait}))
        for wait in waits
    ]


def after(text, statement, **more):
    return {"statement": statement, "after": text, **more}


def redundant(statement, reason):
    return {"statement": statement, "redundant": reason}


IPC_TESTS = ("runtime_tests", "--file=runtime/comm/ipc_backend_test.cpp")

WAITS = [
    *waits_of(
        "sharding/pages/page_memory.cpp",
        "lane.wait_for(slot_.after);",
        after("wire_ = at::Tensor(); }", "ready_ = lane_->mark();"),
        after("attach(full_in_slot());", "use_on_current_stream();"),
        "ready_.block(*stream);",
        "ready_ = std::move(written);",
        "lane.wait_for(gathered_);",
        "lane.wait_for(users_.mark());",
        "slot_.after = users_.mark();",
        redundant(
            "slot_.after.add(ready_);",
            "all-gathers follow each other on one lane, and who used the page"
            " has waited for its own",
        ),
        "arriving_.wait_issued();",
    ),
    *waits_of(
        "sharding/pages/gradient_bucket_slot.cpp",
        after("target_ = Target::kSlotOnTop;", "write_on_current_stream();"),
        after(
            "const std::vector<runtime::FlatSpan>& rest) {",
            "write_on_current_stream();",
        ),
        redundant(
            "before.block(*stream);",
            "backward passes on several streams are in order already: LibTorch"
            " wants that of its users, for it adds to .grad in place",
        ),
        "slot_.after.block(*stream);",
        "gradients.block_current(group_.device());",
        "arrived_on_.block(runtime::mark_current(group_.device()));",
        "lane.follow_current();",
        "slot_.after = lane_->mark();",
    ),
    *waits_of(
        "sharding/pages/gradient_bucket.cpp",
        "runtime::mark_current(group_.device()).block(*allocated_on_);",
        "arrived_on_.insert(*runtime::current_stream(group_.device()));",
    ),
    *waits_of(
        "sharding/paging/gradient_reducer.cpp",
        after('"gets its gradients set to zero");', "wait_for_lane();"),
        "held.slot.after.add("
        "context_.scheduler->before_gradients_change(*held.page));",
        "context_.scheduler->before_gradients_change(page).block_current("
        " lane_.device());",
        "page.follow_users(updates_);",
        "updates_.wait_for(lane_.mark());",
        "lane_.wait_for(updates_.mark());",
    ),
    *waits_of("sharding/paging/gradient_agreement.cpp", "reducer_.wait_for_lane();"),
    *waits_of(
        "sharding/paging/pager.cpp",
        "unsharder_.wait_before_memory_is_freed();",
        "reducer_.wait_before_memory_is_freed();",
    ),
    *waits_of(
        "engine/engine.cpp",
        after("may still read shards.", "pager_->wait_for_gather_lane();"),
        after("pager_->settle_gradients();", "pager_->wait_for_gather_lane();"),
    ),
    *waits_of("engine/engine_setup.cpp", "pager_->wait_before_memory_is_freed();"),
    *waits_of("sharding/weights/load_weights.cpp", "pager.wait_for_gather_lane();"),
    *waits_of(
        "engine/checkpoint/model_loading.cpp", "subject_.pager.wait_for_gather_lane();"
    ),
    *waits_of(
        "sharding/paging/unsharder.cpp",
        after("settle_shard(page); }", "page.use_on_current_stream();"),
        after("if (page.is_under_update()) {", "settle_shard(page);"),
        "lane_.wait_for(marks);",
        "marks.block_current(lane_.device());",
    ),
    *waits_of(
        "sharding/paging/step_executor.cpp",
        "page_of(access).use_on_current_stream();",
        after("for (const int g : groups) {", "unsharder_.wait_ready(context_.pages[g]);"),
        "unsharder_.let_update_go_on(*page);",
        "unsharder_.follow_writes();",
    ),
    *waits_of(
        "offload/activations/activation_copies.cpp",
        "lane->synchronize();",
        "to_host_.wait_for(streams.mark());",
        "to_host_.wait_for(block.after);",
        "done = to_host_.mark();",
        "to_device_.follow_current();",
        "to_device_.wait_for(done);",
        "done = to_device_.mark();",
    ),
    *waits_of(
        "offload/activations/host_activation_moves.cpp",
        "saved.copying.block_current(options_.device);",
        "saved.streams.block(saved.copying);",
        "guard.recordDataPtrOnStream(saved.on_device.data_ptr(), stream);",
        "saved.streams.insert(*stream);",
    ),
    *waits_of("offload/activations/host_activation_sink.cpp", "saved->streams.insert(*stream);"),
    *waits_of("offload/activations/host_activation_pool.cpp", "slab.marks.leave( block.offset, block.offset + block.bytes.numel(), block.after);"),
    *waits_of(
        "offload/stores/host_store.cpp",
        "follow_copies(*stream);",
        after("if (const auto stream = runtime::current_stream(device)) {"
              " const std::lock_guard lock(mutex_);", "note(*stream);"),
        "follow_copies(stream);",
        "note_alone(stream);",
        after("copies_.clear();", "note(stream);"),
        "event.synchronize();",
    ),
    *waits_of(
        "offload/stores/block_pipeline.cpp",
        "slot.delivered->synchronize();",
        "last_copy->synchronize();",
        "slot.delivered->record(*transfer.stream);",
        "transfer.last_copy->record(*transfer.stream);",
    ),
    *waits_of(
        "offload/updates/streamed_update.cpp",
        after("StreamedUpdate::~StreamedUpdate() {", "wait();"),
        "buffer.free = runtime::mark_current(device_);",
        "updating_.follow_current();",
        "arriving_.wait_for(buffer.free);",
        "updating_.wait_for(arriving_.mark());",
        "leaving_.wait_for(updating_.mark());",
        "buffer.free = leaving_.mark();",
        "hold(segments);",
        "tensor.used_on_current_stream(device_);",
        "leaving_.synchronize();",
    ),
    *waits_of(
        "offload/updates/page_updates.cpp",
        after("size_t g, std::function<void()> work) {", "queue_->follow_current();"),
        after("may fetch its gradient.", "queue_->follow_current();"),
        after("std::exchange(begun_, true)) {", "queue_->follow_current();"),
        "after_streaming_[update.page] = streamed_.mark();",
        after("} else {", "streamed_.join();"),
        "queue_->wait(tickets_[g]);",
        "marks.add(after_streaming_[g]);",
        "queue_->wait_all();",
        "queue_->mark().block_current(device_);",
        after("queue_->mark().block_current(device_);", "streamed_.join();"),
    ),
    *waits_of(
        "offload/updates/update_queue.cpp", "lane_.wait_before_memory_is_freed();"
    ),
    *waits_of(
        "runtime/streams/stream_lane.cpp",
        "done.block(*home_);",
        "others.block(done);",
    ),
    *waits_of(
        "engine/optim/sharded_optimizer.cpp",
        "guarded([&] { marks = updates_->wait(number_of(page)); });",
        "context_.streamed.join();",
    ),
    *waits_of(
        "offload/updates/state_access.cpp",
        "streamed_.note_use(tensor);",
        "streamed_.wait();",
        after(
            "ShardTensors tensors = shards_->tensors();",
            "runtime::wait_all(arriving_);",
        ),
    ),
    *waits_of(
        "offload/updates/shard_access.cpp",
        "runtime::wait_all(arriving_on_host_);",
    ),
    *waits_of(
        "offload/updates/speculative_state.cpp",
        redundant(
            "runtime::wait_all(leaving_);",
            "it is computed from gradients of a backward whose forward has read"
            " the weights, after those copies",
        ),
    ),
    Wait(
        "offload/updates/staging_buffers.cpp",
        "runtime::wait_all(buffer->leaving_);",
        tests=("offload_tests", "--file=offload/updates/staging_buffers_test.cpp"),
    ),
    *waits_of(
        "runtime/memory/slot_arena.cpp",
        "homes_.block(marks_.marks_of(0, this->capacity_bytes()));",
        "marks_.leave(0, capacity_bytes, mark_current(device_));",
        "marks_.leave( slot.offset, slot.offset +"
        " static_cast<int64_t>(slot.tensor.nbytes()), slot.after);",
        "homes_.block(slot.after);",
    ),
    *waits_of(
        "runtime/memory/pending_transfer.cpp",
        "done_.record(*current_stream(device()));",
        "done_.synchronize();",
        after("void PendingTransfer::release_issued() {", "wait_issued();"),
    ),
    Wait(
        "runtime/memory/pending_transfer.cpp",
        "transfer.wait();",
        after="for (PendingTransfer& transfer : transfers) {",
        tests=("runtime_tests", "--file=runtime/memory/pending_transfer_test.cpp"),
    ),
    *waits_of(
        "runtime/memory/deferred_scalar.cpp",
        "computed_->done.block(user);",
        "c10::impl::VirtualGuardImpl(tensor.device().type())"
        " .recordDataPtrOnStream(tensor.storage().data_ptr(), user);",
    ),
    *waits_of(
        "runtime/comm/lane_collective.cpp",
        "lane.follow_current();",
        after("if (!pending_.pending()) {", "issued_ = lane.mark();"),
        "c10::impl::VirtualGuardImpl(lane.device().type())"
        " .recordDataPtrOnStream(received.tensor_.storage().data_ptr(), *user);",
        "received.issued_ = lane.mark();",
        "issued_.block_current(lane_->device());",
    ),
    *(
        dataclasses.replace(wait, tests=IPC_TESTS)
        for wait in waits_of(
            "tests/support/ipc/ipc_queue.cpp",
            "driver_->wait_flag( stream, flags(rank_, r).consumed,"
            " flag_value(turn + 1 - kSlots));",
            "driver_->write_flag( stream, flags(r, rank_).published,"
            " flag_value(turn + 1));",
            "driver_->wait_flag( stream, flags(rank_, r).published,"
            " flag_value(turn + 1));",
            "driver_->write_flag(stream, flags(r, rank_).consumed,"
            " flag_value(turn + 1));",
            "driver_->wait_flag(stream, done(), flag_value(first));",
            "driver_->wait_flag(stream, done(), flag_value(end_turn));",
            "compare_with_peers(plan.message);",
            after(
                "sound_turns_ = ended_turns();",
                "release_waits();",
                redundant="the watching thread does it again",
            ),
            after(
                "if (failure_) {",
                "release_waits();",
                redundant="only for a wait that is issued while fail() runs",
            ),
            "fail(reason);",
        )
    ),
]
