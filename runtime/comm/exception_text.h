// SPDX-License-Identifier: Apache-2.0
#pragma once
// text_of_exception() is what a program tells of an exception.

#include <exception>
#include <string>

namespace tessera::runtime {

/// The text of an exception; LibTorch's own errors without their stack trace,
/// and with the remedy if memory ran out. If it says that another rank was
/// lost, that rank is blamed (blame_peer()).
std::string text_of_exception(const std::exception& error);

} // namespace tessera::runtime
