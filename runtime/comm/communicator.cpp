// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/comm/communicator.h"

#include "tessera/runtime/comm/collective_error.h"
#include "tessera/runtime/comm/missing_ranks.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/log.h"
#include "tessera/runtime/core/peer_failure.h"
#include "tessera/runtime/profile/span_recorder.h"
#include "tessera/runtime/streams/stream_marks.h"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <exception>
#include <future>
#include <numeric>
#include <thread>
#include <utility>
#include <vector>

namespace tessera {

namespace {

constexpr std::chrono::milliseconds kCheckInterval{500};
/// A rank that has waited for so long notes it, for the others.
constexpr std::chrono::seconds kAnswerAfter{1};
constexpr std::chrono::milliseconds kFarewell{1000};
constexpr std::chrono::seconds kFarewellOnDevice{30};
/// How long the process of a rank that has left may take to end.
constexpr std::chrono::milliseconds kEndPatience{2000};

// Only the first line: c10d appends a C++ stack trace to its messages.
std::string first_line(const char* text) {
  std::string line(text);
  return line.substr(0, line.find('\n'));
}

/// Options for a collective that runs on the current stream if `on_stream`.
template <typename Options>
Options on_current_stream(bool on_stream) {
  Options options;
  options.asyncOp = !on_stream;
  return options;
}

/// Copies `host` to `device` when the collective has ended.
PendingCollective copied_back(
    PendingCollective pending,
    const at::Tensor& device,
    const at::Tensor& host) {
  pending.then([device, host] {
    const c10::NoGradGuard no_grad;
    device.copy_(host);
  });
  return pending;
}

at::Tensor empty_on_host(const at::Tensor& like) {
  return at::empty(like.sizes(), like.options().device(at::kCPU));
}

/// Checks that `full` has the size of one `part` per rank.
void check_parts(
    const char* collective,
    const at::Tensor& full,
    const at::Tensor& part,
    int ranks,
    const std::string& label) {
  TESSERA_CHECK(
      full.numel() == part.numel() * ranks,
      "{}: {}: the whole tensor has {} elements; it must be {} times (the number of ranks) the part, which has {}",
      label,
      collective,
      full.numel(),
      ranks,
      part.numel());
}

/// @param lengths of the blocks of `tensor`, one per rank.
void check_blocks(
    const at::Tensor& tensor,
    const std::vector<int64_t>& lengths,
    int ranks,
    const std::string& label) {
  const int64_t total =
      std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  TESSERA_CHECK(
      static_cast<int>(lengths.size()) == ranks && total == tensor.numel() &&
          *std::min_element(lengths.begin(), lengths.end()) >= 0,
      "{}: all_to_all of a tensor of {} elements in {} blocks of {} elements in total; there must be one block for each of {} ranks, none of negative length, and they must cover the tensor",
      label,
      tensor.numel(),
      lengths.size(),
      total,
      ranks);
}

/// The collective of a communicator of one rank.
void copy_alone(const at::Tensor& output, const at::Tensor& input) {
  if (!output.is_alias_of(input)) {
    output.copy_(input);
  }
}

/// Why a collective failed.
/// @param calls null: the ranks of the group are not known.
std::string cause_of(
    const std::exception& failure,
    const runtime::MissingRanks* calls) {
  const std::string text = first_line(failure.what());
  const bool is_known =
      dynamic_cast<const runtime::CollectiveError*>(&failure) != nullptr;
  if (is_known && !runtime::names_lost_peer(text)) {
    return text + ".";
  }
  const std::string end =
      calls != nullptr ? calls->end_of_a_rank(kEndPatience) : std::string();
  if (!end.empty()) {
    return end + ".";
  }
  return is_known
             ? text + "."
             : text +
                   ". A peer has left the job or the connection was lost; see the first error of the job for the cause.";
}

void poll_checks(const WaitCheck& check) {
  if (!check) {
    return;
  }
  try {
    check();
  } catch (const c10::Error&) {
    // The store is gone, and with it the rank that hosts it; the collective
    // itself will fail and report that.
  }
}

} // namespace

PendingCollective::PendingCollective(
    c10::intrusive_ptr<c10d::Work> work,
    std::string label,
    Wait wait)
    : work_(std::move(work)),
      label_(std::move(label)),
      wait_(std::move(wait)) {}

void PendingCollective::then(std::function<void()> step) {
  if (!last_step_) {
    last_step_ = std::move(step);
    return;
  }
  last_step_ = [first = std::move(last_step_), second = std::move(step)] {
    first();
    second();
  };
}

void PendingCollective::answer_roll_call() const {
  if (!wait_.missing_ranks) {
    return;
  }
  try {
    wait_.missing_ranks->answer(wait_.number);
  } catch (const std::exception&) {
    // The store is gone; the collective itself will report that.
  }
}

std::vector<int> PendingCollective::missing_ranks(
    bool log,
    std::chrono::seconds waited) const {
  if (!wait_.missing_ranks) {
    return {};
  }
  try {
    const auto answers = wait_.missing_ranks->answers(wait_.number);
    if (log && answers.is_first && !answers.missing.empty()) {
      log_warning(
          "{}: waiting for {} for {} s",
          label_,
          runtime::ranks_text(answers.missing),
          waited.count());
    }
    return answers.missing;
  } catch (const std::exception&) {
    return {};
  }
}

void PendingCollective::wait(const WaitCheck& check) {
  if (!work_.defined()) {
    return;
  }
  // Released on every path: a failed collective must not be waited for twice.
  auto work = std::move(work_);
  work_.reset();
  const auto start = std::chrono::steady_clock::now();
  auto next_notice = runtime::kWaitNoticeInterval;
  bool has_answered = false;
  while (true) {
    const bool was_over = work->isCompleted();
    try {
      // With a timeout, NCCL's work would block the host and, after the
      // timeout, abort the communicator.
      work->wait(wait_.on_stream ? kNoTimeout : kCheckInterval);
      if (const auto last_step = std::exchange(last_step_, nullptr)) {
        last_step();
      }
      return;
    } catch (const std::exception& failure) {
      const bool is_over = work->isCompleted();
      if (!wait_.on_stream && is_over && !was_over) {
        continue; // it ended just after the interval, or failed: wait() tells
      }
      if (wait_.on_stream || is_over) {
        // A peer that left because of an error may have reported it.
        poll_checks(check);
        runtime::blame_peer();
        TESSERA_FAIL(
            "{} failed: {}",
            label_,
            cause_of(failure, wait_.missing_ranks.get()));
      }
    }
    poll_checks(check);
    const auto elapsed = std::chrono::steady_clock::now() - start;
    const auto waited =
        std::chrono::duration_cast<std::chrono::seconds>(elapsed);
    const bool is_over = elapsed >= wait_.timeout;
    if (!has_answered && elapsed >= kAnswerAfter) {
      answer_roll_call();
      has_answered = true;
    }
    if (waited < next_notice && !is_over) {
      continue;
    }
    next_notice = waited + runtime::kWaitNoticeInterval;
    const std::vector<int> missing = missing_ranks(!is_over, waited);
    TESSERA_CHECK(
        !is_over,
        "{} is still incomplete after {} s: {} not joined it. Either a rank is stuck or slower than the time limit allows (TESSERA_TIMEOUT_S, InitOptions::timeout), or the ranks have taken different paths through the model.",
        label_,
        waited.count(),
        missing.empty() ? "at least one rank has"
                        : runtime::ranks_text(missing) +
                              (missing.size() == 1 ? " has" : " have"));
  }
}

Communicator::Communicator(std::string name) : name_(std::move(name)) {}

Communicator::Communicator(
    std::string name,
    c10::intrusive_ptr<c10d::Backend> backend,
    std::chrono::milliseconds timeout,
    std::shared_ptr<runtime::MissingRanks> missing_ranks)
    : name_(std::move(name)),
      backend_(std::move(backend)),
      timeout_(timeout),
      missing_ranks_(std::move(missing_ranks)),
      device_(backend_->getBoundDeviceId()),
      is_gloo_(backend_->getBackendName() == "gloo"),
      rank_(backend_->getRank()),
      size_(backend_->getSize()) {}

std::string Communicator::transport() const {
  return backend_ ? backend_->getBackendName() : "none";
}

Communicator::~Communicator() {
  if (on_stream()) {
    leave_device();
    return;
  }
  // Gloo's destructor waits for every collective in progress, up to its
  // timeout. After an error the peers do the same and wait for each other.
  const auto deadline = std::chrono::steady_clock::now() + kFarewell;
  for (const auto& weak : under_way_) {
    const auto work = weak.lock();
    if (work && !is_gloo_ && !work->isCompleted()) {
      // Shared memory moves small pieces only while a thread waits for them.
      try {
        work->wait(kFarewell);
      } catch (const std::exception&) {
        return; // a peer has left already
      }
    }
    while (work && !work->isCompleted()) {
      if (std::chrono::steady_clock::now() > deadline) {
        if (is_gloo_) {
          (void)backend_.release();
        }
        return;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
}

/// [Note: leaving NCCL] The destructor of c10d's NCCL group aborts kernels that
/// are running, which leaves their output undefined. shutdown() does not, but
/// blocks until the other ranks of the host have called it too. These may have
/// failed, so that another thread calls it.
void Communicator::leave_device() noexcept {
  if (is_aborted_ || std::uncaught_exceptions() > 0) {
    return;
  }
  try {
    const auto deadline = std::chrono::steady_clock::now() + kFarewellOnDevice;
    for (const c10::Stream& stream : streams_) {
      while (!stream.query()) {
        if (std::chrono::steady_clock::now() > deadline) {
          return;
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    }
    std::promise<void> left;
    std::future<void> has_left = left.get_future();
    std::thread([backend = backend_, left = std::move(left)]() mutable {
      try {
        backend->shutdown();
      } catch (const std::exception&) {
        // A peer has failed; the first error of the job says why.
      }
      backend.reset();
      left.set_value();
    }).detach();
    has_left.wait_until(deadline);
  } catch (const std::exception& failure) {
    log_warning(
        "the communicator '{}' was not left in order: {}",
        name_,
        first_line(failure.what()));
  }
}

/// A collective on a stream is a span of that stream; of others it is only
/// known whether they are done.
void Communicator::trace(
    const c10::intrusive_ptr<c10d::Work>& work,
    const runtime::StreamTime& begin,
    const std::string& label,
    size_t bytes) const {
  const auto lane = runtime::TraceLaneScope::current();
  const auto count = static_cast<int64_t>(bytes);
  if (on_stream()) {
    runtime::SpanRecorder::add(
        {lane,
         label,
         begin,
         runtime::StreamTime::now(*device_),
         /*on_device=*/true,
         count});
  } else {
    runtime::SpanRecorder::watch(
        lane, label, count, [work] { return work->isCompleted(); });
  }
}

PendingCollective Communicator::pending(
    const std::function<c10::intrusive_ptr<c10d::Work>()>& issue,
    std::string label,
    size_t bytes) {
  const bool is_traced = runtime::SpanRecorder::current() != nullptr;
  const auto begin = is_traced && on_stream()
                         ? runtime::StreamTime::now(*device_)
                         : runtime::StreamTime();
  auto work = issue();
  if (is_traced) {
    trace(work, begin, label, bytes);
  }
  if (on_stream()) {
    const auto stream = runtime::current_stream(*device_);
    if (stream && std::find(streams_.begin(), streams_.end(), *stream) ==
                      streams_.end()) {
      streams_.push_back(*stream);
    }
  } else {
    while (!under_way_.empty()) {
      const auto oldest = under_way_.front().lock();
      if (oldest && !oldest->isCompleted()) {
        break;
      }
      under_way_.pop_front();
    }
    under_way_.emplace_back(work);
  }
  PendingCollective result(
      std::move(work),
      std::move(label),
      {timeout_, on_stream(), missing_ranks_, issued_++});
  if (on_stream()) {
    // It runs on the current stream, which has nothing else to wait for.
    result.wait();
  }
  return result;
}

PendingCollective Communicator::all_gather(
    const at::Tensor& output,
    const at::Tensor& input,
    std::string label) {
  check_parts("all_gather", output, input, size_, label);
  if (!backend_) {
    copy_alone(output, input);
    return {};
  }
  if (is_staged(output)) {
    const at::Tensor host = empty_on_host(output);
    return copied_back(
        all_gather(host, input.to(at::kCPU), std::move(label)), output, host);
  }
  // c10d takes tensors by mutable reference. Not every backend supports every
  // integer type.
  const bool as_bytes = !at::isFloatingType(output.scalar_type());
  at::Tensor out = as_bytes ? output.view(at::kByte) : output;
  at::Tensor in = as_bytes ? input.view(at::kByte) : input;
  return pending(
      [&] {
        return backend_->_allgather_base(
            out, in, on_current_stream<c10d::AllgatherOptions>(on_stream()));
      },
      std::move(label),
      output.nbytes());
}

PendingCollective Communicator::reduce_scatter_sum(
    const at::Tensor& output,
    const at::Tensor& input,
    std::string label) {
  check_parts("reduce_scatter", input, output, size_, label);
  if (!backend_) {
    copy_alone(output, input);
    return {};
  }
  if (is_staged(output)) {
    const at::Tensor host = empty_on_host(output);
    return copied_back(
        reduce_scatter_sum(host, input.to(at::kCPU), std::move(label)),
        output,
        host);
  }
  if (is_gloo_) {
    // Gloo has no reduce-scatter. c10d emulates it by an all-reduce on a copy
    // of the input, whose handle waits forever, past timeouts and lost peers.
    std::vector<at::Tensor> tensors{input};
    auto result = pending(
        [&] { return backend_->allreduce(tensors); },
        std::move(label),
        input.nbytes());
    const int64_t numel = output.numel();
    result.then([output, input, begin = rank_ * numel, numel] {
      const c10::NoGradGuard no_grad;
      output.copy_(input.view({-1}).narrow(0, begin, numel));
    });
    return result;
  }
  at::Tensor out = output;
  at::Tensor in = input;
  return pending(
      [&] {
        return backend_->_reduce_scatter_base(
            out,
            in,
            on_current_stream<c10d::ReduceScatterOptions>(on_stream()));
      },
      std::move(label),
      input.nbytes());
}

PendingCollective Communicator::all_to_all(
    const at::Tensor& output,
    const at::Tensor& input,
    std::string label) {
  TESSERA_CHECK(
      output.numel() == input.numel() && input.numel() % size_ == 0,
      "{}: all_to_all from {} elements to {}; both sides must have the same number of elements, divisible by the {} ranks",
      label,
      input.numel(),
      output.numel(),
      size_);
  return exchange(output, input, {}, std::move(label));
}

PendingCollective Communicator::all_to_all(
    const at::Tensor& output,
    const at::Tensor& input,
    const AllToAllBlocks& blocks,
    std::string label) {
  check_blocks(output, blocks.taken, size_, label);
  check_blocks(input, blocks.sent, size_, label);
  return exchange(output, input, blocks, std::move(label));
}

PendingCollective Communicator::exchange(
    const at::Tensor& output,
    const at::Tensor& input,
    AllToAllBlocks blocks,
    std::string label) {
  if (!backend_) {
    copy_alone(output, input);
    return {};
  }
  if (is_staged(output)) {
    const at::Tensor host = empty_on_host(output);
    return copied_back(
        exchange(host, input.to(at::kCPU), std::move(blocks), std::move(label)),
        output,
        host);
  }
  at::Tensor out = output.view({-1});
  at::Tensor in = input.view({-1});
  if (!at::isFloatingType(out.scalar_type())) {
    // Not every backend supports every integer type.
    for (auto* lengths : {&blocks.taken, &blocks.sent}) {
      for (int64_t& length : *lengths) {
        length *= static_cast<int64_t>(out.itemsize());
      }
    }
    out = out.view(at::kByte);
    in = in.view(at::kByte);
  }
  return pending(
      [&] {
        return backend_->alltoall_base(
            out,
            in,
            blocks.taken,
            blocks.sent,
            on_current_stream<c10d::AllToAllOptions>(on_stream()));
      },
      std::move(label),
      output.nbytes());
}

PendingCollective Communicator::all_reduce_sum(
    const at::Tensor& tensor,
    std::string label) {
  return all_reduce(tensor, c10d::ReduceOp::SUM, std::move(label));
}

PendingCollective Communicator::all_reduce_max(
    const at::Tensor& tensor,
    std::string label) {
  return all_reduce(tensor, c10d::ReduceOp::MAX, std::move(label));
}

PendingCollective Communicator::all_reduce(
    const at::Tensor& tensor,
    const c10d::ReduceOp& op,
    std::string label) {
  if (!backend_) {
    return {};
  }
  if (is_staged(tensor)) {
    const at::Tensor host = tensor.to(at::kCPU);
    return copied_back(all_reduce(host, op, std::move(label)), tensor, host);
  }
  std::vector<at::Tensor> tensors{tensor};
  auto options = on_current_stream<c10d::AllreduceOptions>(on_stream());
  options.reduceOp = op;
  return pending(
      [&] { return backend_->allreduce(tensors, options); },
      std::move(label),
      tensor.nbytes());
}

PendingCollective Communicator::broadcast(
    const at::Tensor& tensor,
    int root,
    std::string label) {
  if (!backend_) {
    return {};
  }
  if (is_staged(tensor)) {
    const at::Tensor host = tensor.to(at::kCPU);
    return copied_back(broadcast(host, root, std::move(label)), tensor, host);
  }
  std::vector<at::Tensor> tensors{tensor};
  auto options = on_current_stream<c10d::BroadcastOptions>(on_stream());
  options.rootRank = root;
  return pending(
      [&] { return backend_->broadcast(tensors, options); },
      std::move(label),
      tensor.nbytes());
}

void Communicator::abort() noexcept {
  if (!backend_) {
    return;
  }
  is_aborted_ = true;
  try {
    backend_->abort();
  } catch (const std::exception& failure) {
    log_warning(
        "the communicator '{}' could not be aborted: {}",
        name_,
        failure.what());
  }
}

void Communicator::barrier(const WaitCheck& check) {
  if (backend_) {
    pending([&] { return backend_->barrier(); }, "barrier of " + name_, 0)
        .wait(check);
  }
}

} // namespace tessera
