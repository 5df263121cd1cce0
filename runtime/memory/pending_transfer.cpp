// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/memory/pending_transfer.h"

#include "tessera/runtime/core/log.h"
#include "tessera/runtime/profile/span_recorder.h"
#include "tessera/runtime/streams/stream_marks.h"

#include <c10/core/GradMode.h>

#include <exception>
#include <utility>

namespace tessera::runtime {

namespace {

/// A copy on a stream.
class StreamCopy : public PendingTransfer::Work {
 public:
  StreamCopy(const at::Tensor& into, const at::Tensor& from)
      : into_(into), from_(from), done_(device().type()) {
    const TraceSpan span(
        into.is_cpu() ? TraceLane::kToHost : TraceLane::kToDevice,
        "copy",
        device(),
        static_cast<int64_t>(from.nbytes()));
    into.copy_(from, /*non_blocking=*/true);
    done_.record(*current_stream(device()));
  }

  void wait_issued() override {}
  void wait() override {
    done_.synchronize();
  }

 private:
  c10::Device device() const {
    return into_.is_cpu() ? from_.device() : into_.device();
  }

  at::Tensor into_;
  at::Tensor from_;
  c10::Event done_;
};

} // namespace

PendingTransfer::PendingTransfer(std::shared_ptr<Work> work)
    : work_(std::move(work)) {}

PendingTransfer::~PendingTransfer() {
  try {
    wait();
  } catch (const std::exception& error) {
    log_error("a transfer that was never waited for failed: {}", error.what());
  }
}

PendingTransfer& PendingTransfer::operator=(PendingTransfer&& other) noexcept {
  PendingTransfer ended(std::move(*this));
  work_ = std::move(other.work_);
  return *this;
}

void PendingTransfer::wait() {
  if (const auto work = std::exchange(work_, nullptr)) {
    work->wait();
  }
}

void PendingTransfer::wait_issued() {
  if (work_ == nullptr) {
    return;
  }
  try {
    work_->wait_issued();
  } catch (...) {
    work_ = nullptr;
    throw;
  }
}

void PendingTransfer::release() {
  work_ = nullptr;
}

void PendingTransfer::release_issued() {
  wait_issued();
  release();
}

void wait_all(std::vector<PendingTransfer>& transfers) {
  for (PendingTransfer& transfer : transfers) {
    transfer.wait();
  }
  transfers.clear();
}

PendingTransfer begin_copy(const at::Tensor& into, const at::Tensor& from) {
  const c10::NoGradGuard no_grad;
  if (into.is_cpu() && from.is_cpu()) {
    into.copy_(from);
    return {};
  }
  return PendingTransfer(std::make_shared<StreamCopy>(into, from));
}

} // namespace tessera::runtime
