// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/comm/uncaught_errors.h"

#include "tessera/runtime/comm/exception_text.h"
#include "tessera/runtime/core/log.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>

namespace tessera::runtime {

namespace {

[[noreturn]] void report_and_exit() {
  try {
    if (const auto uncaught = std::current_exception()) {
      std::rethrow_exception(uncaught);
    }
  } catch (const std::exception& error) {
    log_error("{}", text_of_exception(error));
    std::fflush(nullptr);
    // No destructors: other threads still run.
    std::_Exit(1);
  } catch (...) {
    // Nothing is known of it.
  }
  std::abort();
}

bool has_default_handler() {
#if defined(__GLIBCXX__)
  return std::get_terminate() == &__gnu_cxx::__verbose_terminate_handler;
#else
  return false;
#endif
}

} // namespace

void report_uncaught_errors() {
  const char* aborts = std::getenv("TESSERA_ABORT");
  if (has_default_handler() && !(aborts && std::strcmp(aborts, "1") == 0)) {
    std::set_terminate(&report_and_exit);
  }
}

} // namespace tessera::runtime
