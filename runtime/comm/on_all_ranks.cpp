// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/comm/on_all_ranks.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/peer_failure.h"
#include "tessera/runtime/core/size_text.h"

#include <ATen/ops/tensor.h>

#include <exception>

namespace tessera::runtime {

void on_all_ranks(
    Communicator& ranks,
    const std::string& label,
    const std::function<void()>& work,
    const WaitCheck& check) {
  std::exception_ptr error;
  try {
    work();
  } catch (...) {
    error = std::current_exception();
  }
  const at::Tensor failed = at::tensor({error ? 1.0 : 0.0}, at::kDouble);
  ranks.all_reduce_sum(failed, label).wait(check);
  if (error) {
    std::rethrow_exception(error);
  }
  if (failed.item<double>() != 0) {
    blame_peer();
    TESSERA_FAIL(
        "{} failed on {}; see their errors.",
        label,
        count_text(static_cast<int64_t>(failed.item<double>()), "other rank"));
  }
}

} // namespace tessera::runtime
