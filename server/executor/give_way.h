// Threads that compute give way to those that answer callers.
#ifndef ATTND_SERVER_EXECUTOR_GIVE_WAY_H_
#define ATTND_SERVER_EXECUTOR_GIVE_WAY_H_

namespace attnd::server {

// A thread that computes uses its processor up, and Linux then lets threads that wake up there wait
// for milliseconds, each time: a message that comes in several pieces waits for many. Measured with
// everything on one processor (Linux 6.18): calls spent 43 to 87 ms outside the queue and the
// kernel; 3 ms with 5, 1.4 ms with 10, at the same rate of answers. But beside another busy process
// of the same session or control group, a thread that is 5 nicer gets a quarter of a processor, one
// that is 10 nicer a tenth.
inline constexpr int kNiceOfComputing = 5;

// Makes the calling thread, and those that it starts from now on, so much nicer than the process's
// other threads. For threads that compute; there is no way back without privileges.
void GiveWay();

}  // namespace attnd::server

#endif  // ATTND_SERVER_EXECUTOR_GIVE_WAY_H_
