#include "kernels/cpu/give_turn.h"

#include <sched.h>

#include <chrono>

namespace attnd::kernels::cpu {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::microseconds kTurn{250};

thread_local Clock::time_point turn_ends{};

}  // namespace

void GiveTurn() {
  const Clock::time_point now = Clock::now();
  if (now < turn_ends) return;
  sched_yield();
  turn_ends = Clock::now() + kTurn;
}

}  // namespace attnd::kernels::cpu
