// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/comm/shm_message.h"

#include "tessera/runtime/core/error.h"

#include <c10/core/ScalarType.h>

#include <sstream>
#include <string>

namespace tessera::runtime {

namespace {

std::string describe(const ShmMessage& message) {
  constexpr const char* kNames[] = {
      "nothing",
      "an all-gather",
      "a sum",
      "a maximum",
      "a small sum",
      "a small maximum",
      "an all-to-all"};
  std::ostringstream text;
  text << kNames[static_cast<int32_t>(message.kind)] << " of " << message.bytes
       << " bytes of " << static_cast<c10::ScalarType>(message.dtype);
  return text.str();
}

} // namespace

void check_same_collective(
    const ShmMessage& self_message,
    int rank,
    const ShmMessage& peer_message,
    int peer) {
  TESSERA_CHECK(
      peer_message.kind == self_message.kind &&
          peer_message.dtype == self_message.dtype &&
          peer_message.bytes == self_message.bytes,
      "the ranks are in different collectives: rank {} in {}, rank {} in {}. Every rank must take the same path through the same program, with the same configuration",
      rank,
      describe(self_message),
      peer,
      describe(peer_message));
}

} // namespace tessera::runtime
