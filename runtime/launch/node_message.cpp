// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/launch/node_message.h"

#include <nlohmann/json.hpp>

namespace tessera::runtime {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(
    NodeMessage,
    kind,
    text,
    node_rank,
    nnodes,
    nproc,
    version,
    attempt,
    port,
    exit_code,
    signal,
    count,
    blames_peer,
    may_restart)

std::string encoded(const NodeMessage& message) {
  using nlohmann::json;
  // Host names need not be UTF-8.
  return json(message).dump(-1, ' ', false, json::error_handler_t::replace) +
         "\n";
}

std::optional<NodeMessage> decoded(std::string_view line) {
  try {
    return nlohmann::json::parse(line).get<NodeMessage>();
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
}

} // namespace tessera::runtime
