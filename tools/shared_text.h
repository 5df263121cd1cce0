// SPDX-License-Identifier: Apache-2.0
#pragma once
// `SharedText` gives all ranks of a job the texts that rank 0 reads.

#include "tessera/runtime/comm/communicator.h"
#include "tessera/runtime/comm/init.h"

#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace tessera::tools {

class SharedText {
 public:
  /// Collective over the job.
  explicit SharedText(World& world);

  /// Calls `read` on rank 0 and returns its result on every rank. Collective;
  /// blocks until rank 0 has it.
  std::optional<std::string> next(
      const std::function<std::optional<std::string>()>& read);

 private:
  bool is_first_;
  std::unique_ptr<Communicator> ranks_; ///< null if there is one
};

} // namespace tessera::tools
