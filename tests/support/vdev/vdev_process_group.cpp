// SPDX-License-Identifier: Apache-2.0
#include "support/vdev/vdev_process_group.h"

#include "support/vdev/vdev.h"
#include "support/vdev/vdev_memory.h"

#include "tessera/runtime/comm/cpu_transport.h"
#include "tessera/runtime/comm/nccl_registry.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <unistd.h>

#include <cstring>
#include <utility>

namespace tessera::tests::vdev {

namespace {

constexpr std::chrono::milliseconds kNudge{1};

/// Starts a collective in place, in the memory of the one tensor.
template <typename Call>
auto in_place(const std::vector<at::Tensor>& tensors, Call call) {
  return [own = std::vector<at::Tensor>{on_host(tensors.at(0))},
          call = std::move(call)](c10d::Backend& transport) mutable {
    return call(transport, own);
  };
}

} // namespace

/// Commands may outlive the group. Guarded by the runtime's mutex.
struct ProcessGroup::State {
  c10::intrusive_ptr<c10d::Store> store;
  int rank = 0;
  int size = 1;
  std::chrono::milliseconds timeout{};
  c10::intrusive_ptr<c10d::Backend> transport; ///< null: not connected
  std::vector<c10::Stream> streams; ///< on which there were collectives
  uint64_t issued = 0;
  uint64_t ended = 0;
  bool is_aborted = false;
};

ProcessGroup::ProcessGroup(
    c10::intrusive_ptr<c10d::Store> store,
    int rank,
    int size,
    c10::DeviceIndex index,
    std::chrono::milliseconds timeout)
    : Backend(rank, size), index_(index), state_(std::make_shared<State>()) {
  state_->store = std::move(store);
  state_->rank = rank;
  state_->size = size;
  state_->timeout = timeout;
  setBoundDeviceId(device(index));
  Runtime::instance().run_in_background();
}

ProcessGroup::~ProcessGroup() {
  abort();
}

void ProcessGroup::abort() {
  const std::lock_guard lock(Runtime::instance().mutex());
  if (state_->ended < state_->issued && !state_->is_aborted) {
    Runtime::instance().note_violation(
        "a process group is destroyed or aborted while " +
        std::to_string(state_->issued - state_->ended) +
        " of its collectives are in flight");
  }
  state_->is_aborted = true;
}

void ProcessGroup::shutdown() {
  for (const c10::Stream& stream : state_->streams) {
    Runtime::instance().synchronize(stream, "shutdown of a process group");
  }
}

void ProcessGroup::eagerConnectSingleDevice(at::Device /*device*/) {
  connect();
}

void ProcessGroup::connect() {
  if (!state_->transport) {
    state_->transport = runtime::make_cpu_backend(
        state_->store, state_->rank, state_->size, state_->timeout);
  }
}

void ProcessGroup::issue(
    const char* name,
    const std::vector<at::Tensor>& read,
    const std::vector<at::Tensor>& written,
    bool is_async,
    Start start) {
  TORCH_CHECK(
      !is_async, "vdev: only collectives on the current stream are imitated");
  for (const at::Tensor& tensor : written) {
    TORCH_CHECK(
        tensor.device() == device(index_),
        "vdev: ",
        name,
        " of a group of ",
        device(index_),
        " got a tensor on ",
        tensor.device());
  }
  connect();
  Command command{.name = name, .accesses = {}, .run = {}, .also_after = {}};
  std::vector<at::Tensor> results;
  for (const at::Tensor& tensor : read) {
    add_accesses(command.accesses, tensor, false);
  }
  for (const at::Tensor& tensor : written) {
    add_accesses(command.accesses, tensor, true);
    results.push_back(on_host(tensor));
  }
  const auto& guard =
      *c10::impl::getDeviceGuardImpl(c10::DeviceType::PrivateUse1);
  const c10::Stream stream = guard.getStream(device(index_));
  const std::lock_guard lock(Runtime::instance().mutex());
  command.run = [state = state_,
                 results,
                 start = std::move(start),
                 turn = state_->issued,
                 work = c10::intrusive_ptr<c10d::Work>()](bool nudge) mutable {
    if (state->is_aborted) {
      for (const at::Tensor& result : results) {
        std::memset(result.mutable_data_ptr(), kPoison, result.nbytes());
      }
      ++state->ended;
      return true;
    }
    // In the order of issue, on whatever streams.
    if (state->ended < turn) {
      return false;
    }
    if (!work) {
      work = start(*state->transport);
    }
    if (nudge && !work->isCompleted()) {
      // A piece of its work is done by who waits for it.
      try {
        work->wait(kNudge);
      } catch (const std::exception&) {
        // Not yet, or it has failed: see below.
      }
    }
    if (!work->isCompleted()) {
      return false;
    }
    ++state->ended;
    if (!work->isSuccess()) {
      std::rethrow_exception(work->exception());
    }
    work.reset();
    return true;
  };
  state_->streams.push_back(stream);
  Runtime::instance().issue(stream, std::move(command));
  ++state_->issued;
}

c10::intrusive_ptr<c10d::Work> ProcessGroup::_allgather_base(
    at::Tensor& output,
    at::Tensor& input,
    const c10d::AllgatherOptions& options) {
  issue(
      "all_gather",
      {input},
      {output},
      options.asyncOp,
      [out = on_host(output),
       in = on_host(input)](c10d::Backend& transport) mutable {
        return transport._allgather_base(out, in, {});
      });
  return nullptr;
}

c10::intrusive_ptr<c10d::Work> ProcessGroup::_reduce_scatter_base(
    at::Tensor& output,
    at::Tensor& input,
    const c10d::ReduceScatterOptions& options) {
  c10d::ReduceScatterOptions inner;
  inner.reduceOp = options.reduceOp;
  issue(
      "reduce_scatter",
      {input},
      {output},
      options.asyncOp,
      [out = on_host(output), in = on_host(input), inner](
          c10d::Backend& transport) mutable {
        return transport._reduce_scatter_base(out, in, inner);
      });
  return nullptr;
}

c10::intrusive_ptr<c10d::Work> ProcessGroup::allreduce(
    std::vector<at::Tensor>& tensors,
    const c10d::AllreduceOptions& options) {
  c10d::AllreduceOptions inner;
  inner.reduceOp = options.reduceOp;
  issue(
      "all_reduce",
      {},
      tensors,
      options.asyncOp,
      in_place(tensors, [inner](c10d::Backend& transport, auto& own) {
        return transport.allreduce(own, inner);
      }));
  return nullptr;
}

c10::intrusive_ptr<c10d::Work> ProcessGroup::broadcast(
    std::vector<at::Tensor>& tensors,
    const c10d::BroadcastOptions& options) {
  c10d::BroadcastOptions inner;
  inner.rootRank = options.rootRank;
  const bool is_root = getRank() == options.rootRank;
  const std::vector<at::Tensor> none;
  issue(
      "broadcast",
      is_root ? tensors : none,
      is_root ? none : tensors,
      options.asyncOp,
      in_place(tensors, [inner](c10d::Backend& transport, auto& own) {
        return transport.broadcast(own, inner);
      }));
  return nullptr;
}

c10::intrusive_ptr<c10d::Work> ProcessGroup::alltoall_base(
    at::Tensor& output,
    at::Tensor& input,
    std::vector<int64_t>& output_splits,
    std::vector<int64_t>& input_splits,
    const c10d::AllToAllOptions& options) {
  issue(
      "all_to_all",
      {input},
      {output},
      options.asyncOp,
      [out = on_host(output), in = on_host(input), output_splits, input_splits](
          c10d::Backend& transport) mutable {
        return transport.alltoall_base(
            out, in, output_splits, input_splits, {});
      });
  return nullptr;
}

c10::intrusive_ptr<c10d::Work> ProcessGroup::barrier(
    const c10d::BarrierOptions& /*options*/) {
  issue("barrier", {}, {}, false, [](c10d::Backend& transport) {
    return transport.barrier({});
  });
  const auto& guard =
      *c10::impl::getDeviceGuardImpl(c10::DeviceType::PrivateUse1);
  Runtime::instance().synchronize(
      guard.getStream(device(index_)), "barrier of a process group");
  return nullptr;
}

void install_process_group() {
  runtime::register_nccl_backend(
      {.make_backend = [](const c10::intrusive_ptr<c10d::Store>& store,
                          const runtime::NcclOptions& options)
           -> c10::intrusive_ptr<c10d::Backend> {
         const auto index = static_cast<c10::DeviceIndex>(options.device_index);
         auto group = c10::make_intrusive<ProcessGroup>(
             store, options.rank, options.size, index, options.timeout);
         runtime::connect_ranks(*group, device(index));
         return group;
       },
       // Every process has devices of its own.
       .device_identity =
           [](int index) {
             return "VDEV-" + std::to_string(::getpid()) + "-" +
                    std::to_string(index);
           }});
}

} // namespace tessera::tests::vdev
