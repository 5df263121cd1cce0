// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/comm/exception_text.h"

#include "tessera/runtime/core/format.h"
#include "tessera/runtime/core/peer_failure.h"
#include "tessera/runtime/memory/out_of_memory.h"

#include <c10/util/Exception.h>

namespace tessera::runtime {

std::string text_of_exception(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  if (torch_error == nullptr) {
    return error.what();
  }
  const std::string text = torch_error->what_without_backtrace();
  if (dynamic_cast<const c10::DistError*>(torch_error) != nullptr) {
    // The store or a collective lost its peer, which says why it left.
    blame_peer();
    return formatted(
        "this rank ended because it lost another one or the connection to it ({}); see the first error of the job for the cause.",
        text.substr(0, text.find('\n')));
  }
  return is_out_of_memory(*torch_error)
             ? formatted("{}\nOut of memory. {}", text, kMemoryRemedy)
             : text;
}

} // namespace tessera::runtime
