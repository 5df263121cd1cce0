// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/trainer/job_agreement.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/peer_failure.h"

#include <ATen/ops/tensor.h>

#include <exception>
#include <limits>
#include <utility>

namespace tessera::engine {

JobAgreement::JobAgreement(
    World& world,
    const std::string& name,
    WaitCheck check)
    : is_rank_zero_(world.rank() == 0),
      ranks_(world.new_communicator(name)),
      check_(std::move(check)) {}

std::vector<int64_t> JobAgreement::max(const std::vector<int64_t>& values) {
  if (ranks_->size() == 1) {
    return values;
  }
  const at::Tensor all = at::tensor(values, at::kLong);
  ranks_->all_reduce_max(all, "decision of all ranks").wait(check_);
  const auto* found = all.const_data_ptr<int64_t>();
  return {found, found + all.numel()};
}

int64_t JobAgreement::from_rank_zero(
    const std::string& label,
    const std::function<int64_t()>& decide) {
  constexpr int64_t kNothing = std::numeric_limits<int64_t>::min();
  int64_t self_value = kNothing;
  std::exception_ptr error;
  if (is_rank_zero_) {
    try {
      self_value = decide();
    } catch (...) {
      error = std::current_exception();
    }
  }
  const std::vector<int64_t> all = max({self_value, error ? 1 : 0});
  check_rank_zero(label, error, all[1] != 0);
  return all[0];
}

void JobAgreement::by_rank_zero(
    const std::string& label,
    const std::function<void(const std::function<void()>& go_on)>& work) {
  enum State : int64_t { kDone, kWorks, kFailed };
  int64_t state = kDone;
  std::exception_ptr error;
  if (is_rank_zero_) {
    bool is_connected = true;
    try {
      work([&] {
        is_connected = false; // unless the others are there
        max({kWorks});
        is_connected = true;
      });
    } catch (...) {
      if (!is_connected) {
        throw;
      }
      error = std::current_exception();
      state = kFailed;
    }
  }
  int64_t found = kWorks;
  while (found == kWorks) {
    found = max({state}).front();
  }
  check_rank_zero(label, error, found == kFailed);
}

void JobAgreement::check_rank_zero(
    const std::string& label,
    const std::exception_ptr& error,
    bool has_failed) const {
  if (error) {
    std::rethrow_exception(error);
  }
  if (has_failed) {
    runtime::blame_peer();
    TESSERA_FAIL("{} failed on rank 0; see its error.", label);
  }
}

} // namespace tessera::engine
