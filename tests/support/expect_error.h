// SPDX-License-Identifier: Apache-2.0
#pragma once
// Expectations on error messages.

#include <gtest/gtest.h>

#include <exception>
#include <initializer_list>
#include <string>

#include "tessera/runtime/core/error.h"

namespace tessera {

/// The message of the exception that `action` throws; empty if it throws none.
template <typename Action>
std::string error_of(Action&& action) {
  try {
    action();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

/// Runs `action`, expects a tessera::Error and each of `parts` in its message.
template <typename Action>
void expect_error(Action&& action, std::initializer_list<const char*> parts) {
  try {
    action();
  } catch (const Error& error) {
    const std::string message = error.what();
    for (const char* part : parts) {
      EXPECT_NE(message.find(part), std::string::npos)
          << "expected: " << part << "\nfound: " << message;
    }
    return;
  }
  ADD_FAILURE() << "nothing was thrown";
}

} // namespace tessera
