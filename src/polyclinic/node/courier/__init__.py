"""The third engine: studies through folders that people or tools copy (SFTP, rsync, S3, a USB stick). No socket is opened.

An engine is a way to carry messages: the halves of a study are those of the other engines, to the last line. A message
becomes one file, signed by its sender and sealed for its addressee. A file may be late, doubled, out of order, cut short or
lost: what was not answered is sent again, what was answered before is answered the same.

    parcel      a sealed file: what it looks like, how it is opened
    mailbox     inbox and outbox of one party: put, take, what was seen, what was refused
    office      the coordinator's end: carries a driver's asks
    branch      a hospital's end: answers them
    letters     between hospitals, where a sum has no coordinator
"""
