// SPDX-License-Identifier: Apache-2.0
#include "shared_text.h"

#include "tessera/runtime/comm/gather_texts.h"

namespace tessera::tools {

SharedText::SharedText(World& world) : is_first_(world.rank() == 0) {
  if (world.size() > 1) {
    ranks_ = world.new_communicator("texts of rank 0");
  }
}

std::optional<std::string> SharedText::next(
    const std::function<std::optional<std::string>()>& read) {
  if (ranks_ == nullptr) {
    return read();
  }
  // Before the text, whether there is one.
  std::string sent;
  if (is_first_) {
    const auto text = read();
    sent = text ? "+" + *text : "";
  }
  const std::string came =
      runtime::gather_texts(*ranks_, sent, "the text to go on with").front();
  return came.empty() ? std::nullopt : std::optional(came.substr(1));
}

} // namespace tessera::tools
