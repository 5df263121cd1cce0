// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/memory/out_of_memory.h"

#include <string>

namespace tessera::runtime {

bool is_out_of_memory(const c10::Error& error) {
  return dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr ||
         error.msg().find("can't allocate memory") != std::string::npos;
}

} // namespace tessera::runtime
