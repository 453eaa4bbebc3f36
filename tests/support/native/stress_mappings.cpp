// Random results on several threads, under a sanitizer: stress_mappings STEPS SEED. No two have a byte
// in common, and no more than was held at once is mapped.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <random>
#include <thread>

#include "mappings.hpp"

using namespace recurra;

namespace {

constexpr int kThreads = 4, kMost = 12;  // results that a thread holds
std::atomic<bool> wrong{false};

struct Result {
  unsigned char* at;
  std::size_t bytes;
  unsigned char name;
};

std::size_t some(std::mt19937_64& rng) {
  const std::size_t kind = rng() % 4;
  return Mappings::kLarge << kind | (kind ? 0 : rng() % Mappings::kLarge);
}

void check(const Result& one) {
  for (const std::size_t k : {std::size_t{0}, one.bytes / 2, one.bytes - 1}) {
    if (one.at[k] != one.name) wrong = true;
  }
}

void run(Mappings& mappings, int steps, std::uint64_t seed) {
  std::mt19937_64 rng(seed);
  std::vector<Result> held;
  auto leave = [&](std::size_t k) {
    check(held[k]);
    mappings.give_back(held[k].at);
    held.erase(held.begin() + static_cast<long>(k));
  };
  for (int step = 0; step < steps; ++step) {
    if (held.size() == kMost || (!held.empty() && rng() % 2)) {
      leave(rng() % held.size());
      continue;
    }
    Result one{nullptr, some(rng), static_cast<unsigned char>(rng())};
    one.at = static_cast<unsigned char*>(mappings.take(one.bytes));
    if (!one.at || !mappings.gave(one.at)) std::abort();
    for (const std::size_t k : {std::size_t{0}, one.bytes / 2, one.bytes - 1}) one.at[k] = one.name;
    held.push_back(one);
    if (rng() % 64 == 0) rng() % 2 ? mappings.open() : mappings.close(rng() % (1 << 24));
  }
  while (!held.empty()) leave(held.size() - 1);
}

}  // namespace

int main(int, char** arguments) {
  const int steps = std::atoi(arguments[1]);
  Mappings mappings;
  mappings.open();
  std::vector<std::thread> threads;
  for (int k = 0; k < kThreads; ++k) {
    threads.emplace_back(run, std::ref(mappings), steps / kThreads,
                         std::strtoull(arguments[2], nullptr, 10) + static_cast<unsigned>(k));
  }
  for (std::thread& thread : threads) thread.join();
  const std::size_t most = mappings.highest();
  mappings.open();
  mappings.close(0);
  if (wrong || mappings.mapped() || most > kThreads * kMost * 8 * (Mappings::kLarge + 4096)) {
    return std::printf("wrong: %zu of %zu bytes mapped\n", mappings.mapped(), most), 1;
  }
  std::printf("%d steps\n", steps);
  return 0;
}
